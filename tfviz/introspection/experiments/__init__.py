"""Small experiments on models of ours and on arrays of a trace: each measures one claim of the article."""
