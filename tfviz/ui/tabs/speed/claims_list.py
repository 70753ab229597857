"""Every claim of the article with a number in it: where it stands, its formula, what measures it, where it is shown.

Its words are `speed.claims.<key>` (the claim), `.result`, `.rule`, and one sentence for each outcome of its rule.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    key: str
    chapter: str  # section of the article
    formula: str  # markup of ours, the same in every language
    bench: str  # what measures it (claims_bench.BENCHES); "" : it is counted when the page opens
    shown: str  # key of the section where it stands in full


@dataclass(frozen=True)
class Group:
    key: str
    claims: tuple[Claim, ...]


def _v(letter: str, below: str) -> str:
    return f"<i>{letter}</i><sub>{below}</sub>"


D, D_FF, D_K = _v("d", "model"), _v("d", "ff"), _v("d", "k")
N2, N1 = "O(<i>n</i>²)", "O(<i>n</i>)"
SAVED = "1 − {bits} / 32 = {share} %"
HALF, QUARTER, EIGHTH = (SAVED.format(bits=bits, share=share) for bits, share in ((16, 50), (8, 75), (4, 87.5)))

GROUPS = (
    Group(
        "input",
        (
            Claim("base", "2", f"{D_K} = {D} / <i>h</i> = 64, {D_FF} = 4 {D} = 2048", "", "layers.map"),
            Claim("tying", "3.1", f"3 |<i>V</i>| {D} → |<i>V</i>| {D}", "", "training.tying"),
            Claim("embedding", "3.1", f"√{D} · <i>E</i>[<i>token</i>] + <i>PE</i>", "", "positions.encoding"),
            Claim("unique", "3.2", "<i>pos</i> / 10000<sup>2<i>i</i>/<i>d</i></sup>", "", "positions.encoding"),
            Claim(
                "shift",
                "3.2",
                "<i>PE</i><sub>pos+k</sub> = <i>R</i><sub>k</sub> <i>PE</i><sub>pos</sub>",
                "",
                "positions.encoding",
            ),
        ),
    ),
    Group(
        "attention",
        (
            Claim(
                "variance",
                "4.1",
                f"Var(<i>q</i>·<i>k</i>) = {D_K}, Var(<i>q</i>·<i>k</i> / √{D_K}) = 1",
                "",
                "step.scale",
            ),
            Claim("rows", "4.1", "Σ<sub>j</sub> α<sub>ij</sub> = 1", "", "step.flow"),
            Claim("square_time", "4.2", f"{N2} · {D_K}", "kernels", "step.cost"),
            Claim("square_memory", "4.2", N2, "kernels", "step.cost"),
            Claim("heads", "5.2", f"4 {D}²", "", "step.heads"),
            Claim("causal", "9.1", "α<sub>ij</sub> = 0, <i>j</i> &gt; <i>i</i>", "", "masks.model"),
        ),
    ),
    Group(
        "layers",
        (
            Claim("feed_forward", "6", f"2 {D} {D_FF} ≈ 2 M", "", "layers.ffn"),
            Claim("identity", "7.1", "<i>x</i> + <i>F</i>(<i>x</i>) ≈ <i>x</i>", "start", "layers.depth"),
        ),
    ),
    Group(
        "training",
        (
            Claim(
                "noam",
                "11.1",
                f"{D}<sup>−0.5</sup> · min(<i>s</i><sup>−0.5</sup>, <i>s w</i><sup>−1.5</sup>)",
                "",
                "training.rate",
            ),
            Claim("smoothing", "11.2", "(1 − ε) <i>y</i> + ε / |<i>V</i>|", "", "training.smoothing"),
            Claim("clipping", "11.3", "‖<i>g</i>‖ ≤ 1.0", "", "training.clipping"),
            Claim("dropout", "11.3", "<i>p</i> = 0.1", "", "training.dropout"),
            Claim("masking", "12", "15 %", "", "generate.fill"),
        ),
    ),
    Group(
        "cache",
        (
            Claim("kv_cache", "13.1", f"{N2} → {N1}", "cache", "cache.cost"),
            Claim(
                "bottleneck",
                "13.2",
                "<i>t</i>(<i>QKᵀ</i>) + <i>t</i>(<i>αV</i>) ≪ <i>t</i>",
                "products",
                "speed.roofline",
            ),
            Claim("flash_speed", "13.2", "2x – 4x", "kernels", "speed.kernels"),
            Claim("flash_memory", "13.2", f"{N2} → {N1}", "kernels", "speed.kernels"),
            Claim("flash_equal", "13.2", "flash(<i>Q, K, V</i>) = naive(<i>Q, K, V</i>)", "kernels", "speed.tiling"),
        ),
    ),
    Group(
        "bits",
        (
            Claim("fp16_memory", "13.3", HALF, "precision", "speed.precision"),
            Claim("fp16_speed", "13.3", "1.5x", "precision", "speed.precision"),
            Claim("int8_memory", "13.3", QUARTER, "precision", "speed.precision"),
            Claim("int8_speed", "13.3", "2x", "precision", "speed.precision"),
            Claim("int4_memory", "13.3", EIGHTH, "precision", "speed.precision"),
            Claim("int4_speed", "13.3", "3x", "precision", "speed.precision"),
            Claim(
                "losses",
                "13.3",
                "KL<sub>FP16</sub> ≤ KL<sub>INT8</sub> ≤ KL<sub>INT4</sub>",
                "precision",
                "speed.precision",
            ),
            Claim("after_training", "13.3", "75 % – 87 %", "quantisation", "speed.quantisation"),
        ),
    ),
    Group(
        "why",
        (
            Claim("path", "14", f"O(1) ↔ {N1}", "gradients", "speed.recurrent"),
            Claim("parallel", "14", "1 ↔ <i>n</i>", "times", "speed.recurrent"),
        ),
    ),
)
CLAIMS = {claim.key: claim for group in GROUPS for claim in group.claims}
UNMEASURED = (  # statements without a number: where they are shown
    ("extrapolation", "3.2", "positions.extrapolate"),
    ("order", "3.2", "positions.order"),
    ("roles", "5.1", "step.heads"),
    ("eps", "7.2", "layers.norm"),
    ("placement", "7.2", "layers.depth"),
    ("mixed", "11.3", "training.precision"),
    ("accumulation", "11.3", "training.accumulation"),
    ("scaling", "14", ""),
)
