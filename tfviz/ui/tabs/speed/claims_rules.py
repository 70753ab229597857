"""The rules for claims that are counted on modules or drawn: numbers found here in, a verdict with its figures out.

No verdict is written down anywhere: each follows from a limit that stands in this file and on the page beside it.
"""

from collections.abc import Mapping, Sequence

from tfviz.ui.tabs.speed.claims_verdict import FAILS, HOLDS, PART, Figure, Judgement, graded, numbers

SIGMAS = 3  # standard errors that a drawn number may be off


def base(found: Mapping[str, float]) -> Judgement:
    """The paper's base model as it is built here."""
    asked = {"d_model": 512, "d_ff": 2048, "heads": 8, "head_dim": 64, "encoder": 6, "decoder": 6}
    wrong = [name for name, value in asked.items() if found[name] != value]
    fits = found["heads"] * found["head_dim"] == found["d_model"] and found["d_ff"] == 4 * found["d_model"]
    full = not wrong and fits and found["dropout"] == 0.1
    return Judgement(HOLDS if full else FAILS, "full" if full else "none", numbers(found, names=(*asked, "parameters")))


def tying(separate: int, tied: int, vocabulary: int, d_model: int) -> Judgement:
    saved = separate - tied
    figures = numbers({"separate": separate, "tied": tied, "saved": saved})
    figures["share"] = Figure(saved / separate, "share")
    full = saved == 2 * vocabulary * d_model  # three tables become one
    return Judgement(*graded(full, saved > 0), figures)


def embedding(found: Mapping[str, float]) -> Judgement:
    """Root mean squares: of the positions, and of embeddings times sqrt(d_model) under two ways to draw them."""
    figures = numbers(found, "1", ("positions", "paper", "xavier", "plain"))
    figures["off"] = Figure(found["positions"] / found["xavier"], "x")
    near = {name: 0.5 <= found[name] / found["positions"] <= 2 for name in ("paper", "xavier")}
    return Judgement(*graded(near["xavier"], near["paper"]), figures)


def unique(found: Mapping[str, float]) -> Judgement:
    figures = {"distance": Figure(found["distance"], "1"), **numbers(found, names=("offset", "positions"))}
    return Judgement(*graded(found["distance"] > 0.01, found["distance"] > 0), figures)


def shift(found: Mapping[str, float]) -> Judgement:
    """PE(pos + k) against the rotated PE(pos); FP32 knows an angle of 5,000 radians to 2.4e-4."""
    full = found["error"] <= 1e-3
    return Judgement(*graded(full, found["error"] <= 0.1), numbers(found, "1"))


def variance(found: Mapping[str, float]) -> Judgement:
    """Both variances within three standard errors of d_k and of 1."""
    off = max(abs(found["variance"] / found["d_k"] - 1), abs(found["scaled"] - 1))
    figures = numbers(found, "1", ("variance", "scaled")) | {"error": Figure(SIGMAS * found["error"], "share")}
    figures |= numbers(found, names=("d_k", "products"))
    return Judgement(*graded(off <= SIGMAS * found["error"], off <= 0.1), figures)


def rows(found: Mapping[str, float]) -> Judgement:
    full = found["sum_off"] <= 1e-5
    return Judgement(*graded(full, found["sum_off"] <= 1e-2), {"off": Figure(found["sum_off"], "1")})


def causal(found: Mapping[str, float]) -> Judgement:
    """Row i sees i + 1 keys, and every later one gets exactly 0."""
    full = found["future"] == 0 and found["wrong_rows"] == 0
    figures = {"future": Figure(found["future"], "1"), **numbers(found, names=("wrong_rows", "rows"))}
    return Judgement(*graded(full, found["wrong_rows"] == 0), figures)


def heads(found: Mapping[str, float]) -> Judgement:
    figures = numbers(found, names=("many", "one", "formula"))
    same, formula = found["many"] == found["one"], found["many"] == found["formula"]
    return Judgement(*graded(same and formula, same or formula), figures)


def feed_forward(found: Mapping[str, float]) -> Judgement:
    """About 2 M: what rounds to 2 M."""
    figures = numbers(found, names=("weights", "biases", "all"))
    return Judgement(*graded(round(found["all"] / 1e6) == 2, round(found["weights"] / 1e6) == 2), figures)


def identity(attention: float, feed_forward: float) -> Judgement:
    """||sublayer(x)|| / ||x|| of a model that nobody has trained: at most 0.1 is near 0."""
    most = max(attention, feed_forward)
    figures = numbers({"attention": attention, "feed_forward": feed_forward}, "1")
    return Judgement(*graded(most <= 0.1, most <= 0.3), figures)


def noam(found: Mapping[str, float]) -> Judgement:
    """Peak at the end of the warm-up with (d_model x warm-up)^-1/2; slopes 1 and -1/2 on logarithmic axes."""
    peak = abs(found["peak"] / found["formula"] - 1) <= 1e-6 and found["step"] == found["warmup"]
    slopes = abs(found["rise"] - 1) <= 1e-3 and abs(found["fall"] + 0.5) <= 1e-3
    figures = (
        numbers(found, names=("step",)) | numbers(found, "1", ("peak",)) | numbers(found, "power", ("rise", "fall"))
    )
    return Judgement(*graded(peak and slopes, peak or slopes), figures)


def smoothing(found: Mapping[str, float]) -> Judgement:
    """The text is right if it gives torch's loss; text and code agree if they ask for the same distribution."""
    text = found["torch_off"] <= 1e-5
    figures = numbers(found, "1", ("torch_off", "apart", "floor", "text_other", "code_other"))
    figures |= numbers(found, "1", ("text_right", "code_right")) | numbers(found, names=("vocabulary",))
    return Judgement(*graded(text and found["apart"] <= 1e-9, text), figures)


def clipping(norms: Sequence[tuple[float, float]], limit: float = 1.0) -> Judgement:
    """(before, after) of each step."""
    before, after = (max(one) for one in zip(*norms, strict=True))
    cut = sum(one > limit for one, _ in norms)
    figures = numbers({"before": before, "after": after}, "1") | numbers({"cut": cut, "steps": len(norms)})
    if not cut and after <= limit:
        return Judgement(PART, "some", figures)
    full = after <= limit * (1 + 1e-4)
    return Judgement(HOLDS if full else FAILS, "full" if full else "none", figures)


def dropout(found: Mapping[str, float]) -> Judgement:
    """Share of the values that become 0 within three standard errors of p, and the mean kept."""
    error = SIGMAS * (found["p"] * (1 - found["p"]) / found["values"]) ** 0.5
    share = abs(found["share"] - found["p"]) <= error
    figures = {"share": Figure(found["share"], "share"), "error": Figure(error, "share")}
    figures |= numbers(found, names=("values",)) | numbers(found, "power", ("mean",))
    return Judgement(*graded(share and abs(found["mean"] - 1) <= 0.01, share), figures)


def masking(found: Mapping[str, float]) -> Judgement:
    """15 % chosen within three standard errors; all of them replaced by [MASK]?"""
    error = SIGMAS * (0.15 * 0.85 / found["tokens"]) ** 0.5
    chosen = abs(found["chosen"] - 0.15) <= error
    figures = numbers(found, "share", ("chosen", "masked", "random", "kept")) | numbers(found, names=("tokens",))
    return Judgement(*graded(chosen and found["masked"] == found["chosen"], chosen), figures)


def path(relative: Mapping[str, float], distance: int) -> Judgement:
    """The gradient `distance` tokens back, beside that one token back: attention keeps a tenth, the others 1 %."""
    figures = {kind: Figure(value, "1") for kind, value in relative.items()}
    attention = relative["attention"]
    others = [value for kind, value in relative.items() if kind != "attention"]
    full = attention >= 0.1 and max(others) <= 0.01
    return Judgement(*graded(full, attention >= 10 * max(others)), figures, {"distance": f"{distance:,}"})
