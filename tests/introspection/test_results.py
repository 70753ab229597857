"""What is kept of measurements, and what of it others may see."""

from tfviz.inference.records import Record
from tfviz.introspection.results import Results


def test_a_folder_of_this_machine_is_not_in_what_others_see() -> None:
    results = Results()
    names = ["/home/ann/models/tiny", "~/tiny/", "C:\\models\\tiny", "org/name", "smollm2-135m"]
    results.put("key", None, [Record("precision", {"model": one, "n": 8}, "kl", 0.1, "nat") for one in names])
    assert [one.setting["model"] for one in results.records()] == ["tiny", "tiny", "tiny", "org/name", "smollm2-135m"]
