"""The numbers behind the Positions tab's curves, made by the functions that give our models their positions.

encoding      PE(pos), or what RoPE makes of the vector (1, 0, 1, 0 ...) at each position
wavelength    λ_i = 2 π / θ_i positions for one turn of pair i
likeness      PE(p) . PE(j), as a share of its largest; of RoPE: the score of equal q and k at p and j
bound         (1 / (d/2)) Σ_i |Σ_{j<=i} e^{i δ θ_j}| / (i + 1): how far a score can reach (RoFormer, section 3.4.3)
residual      PE(pos + k) - R_k PE(pos), where R_k turns each pair by k θ_i
"""

import numpy as np
import torch
from jaxtyping import Float, Int

from tfviz.config import RopeScaling, TransformerConfig
from tfviz.introspection.position_checks import turn
from tfviz.model.positions import POSITIONS, Rotation
from tfviz.model.positions.rope import angles
from tfviz.model.positions.sinusoidal import frequencies, sinusoidal_encoding
from tfviz.sources.positions import Angles

SEED = 0  # of a table that nobody trained
Rows = Float[np.ndarray, "pos dim"]


def rope_angles(d: int, base: float, scaling: RopeScaling | None = None) -> Angles:
    """What our RoPE turns by."""
    theta, grown = angles(d, base, scaling)
    return Angles(theta.numpy(), grown, base, pairs="interleaved")


def sinusoids(n: int, d: int, base: float) -> Rows:
    rows: np.ndarray = sinusoidal_encoding(torch.arange(n)[None], d, base)[0].numpy()
    return rows


def turned_units(n: int, d: int, base: float) -> Rows:
    """(1, 0, 1, 0 ...) turned by RoPE at each position: cosine and sine of each pair's angle."""
    unit = np.tile(np.array([1, 0], dtype=np.float32), d // 2)
    said = rope_angles(d, base)
    return turn(np.broadcast_to(unit, (1, n, d)), said, said.pairs)[0]


def fresh_table(n: int, d: int) -> Rows:
    """A learned table before any training: what our scheme starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        scheme = POSITIONS["learned"](TransformerConfig(vocab_size=4, d_model=d, n_heads=1, max_seq_len=n))
        rows: np.ndarray = scheme.add(torch.zeros(1, n, d), torch.arange(n)[None])[0].detach().numpy()
    return rows


def wavelengths(theta: Float[np.ndarray, " pair"]) -> Float[np.ndarray, " pair"]:
    """Positions for one whole turn, of pairs that turn."""
    return 2 * np.pi / theta.astype(np.float64)


def pair_angles(d: int, base: float) -> Float[np.ndarray, " pair"]:
    """θ_i of sinusoids and of RoPE alike."""
    theta: np.ndarray = frequencies(d, base).numpy()
    return theta


def likeness(rows: Rows) -> Float[np.ndarray, "pos pos"]:
    """The cosine between every two rows."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return unit @ unit.T


def scores_of(
    q: Float[np.ndarray, " dim"], k: Float[np.ndarray, " dim"], said: Angles, distances: Int[np.ndarray, " distance"]
) -> Float[np.ndarray, " distance"]:
    """q at each position of `distances`, k at position 0, both turned: their dot products."""
    pairs = said.pairs or "halves"
    turned = turn(np.broadcast_to(q, (1, len(distances), len(q))), said, pairs, distances)[0]
    start = turn(k[None, None], said, pairs, np.zeros(1, dtype=np.int64))[0, 0]
    scores: np.ndarray = turned @ start
    return scores


def unit_scores(said: Angles, distances: Int[np.ndarray, " distance"]) -> Float[np.ndarray, " distance"]:
    """The score of equal q and k, as a share of what it is at distance 0: the mean of cos(distance θ_i)."""
    ones = np.full(2 * len(said.theta), len(said.theta) ** -0.5 / 2**0.5, dtype=np.float32)
    return scores_of(ones, ones, said, distances)


def mean_scores(said: Angles, distances: Int[np.ndarray, " distance"]) -> Float[np.ndarray, " distance"]:
    """The mean of `unit_scores` over all distances within a quarter of each: the trend below the swinging.

    Σ_{m=a..b} cos(m θ) = (sin((b + 1/2) θ) - sin((a - 1/2) θ)) / (2 sin(θ / 2)), b - a + 1 of a pair that stands still
    """
    theta, still = said.theta[said.turning].astype(np.float64), len(said.theta) - len(said.turning)
    a, b = (x[:, None] for x in (np.ceil(distances / 1.25), np.floor(distances * 1.25)))
    sums = (np.sin((b + 0.5) * theta) - np.sin((a - 0.5) * theta)) / (2 * np.sin(theta / 2))
    means: np.ndarray = ((sums / (b - a + 1)).sum(axis=1) + still) / len(said.theta) * said.grown**2
    return means


def rotation_residual(d: int, base: float, shift: int, n: int) -> tuple[float, float]:
    """max |PE(pos + k) - R_k PE(pos)| over n positions, and the same with R of k + 1, which cannot fit."""
    rows, later = sinusoids(n, d, base), sinusoids(n + shift, d, base)[shift:]
    found = []
    for k in (shift, shift + 1):
        angle = -k * frequencies(d, base)[None, None, None]  # (sin a, cos a) turns the other way round than (cos, sin)
        rotation = Rotation(angle.cos(), angle.sin(), interleaved=True)
        found.append(float(np.abs(rotation(torch.from_numpy(rows)[None, None])[0, 0].numpy() - later).max()))
    return found[0], found[1]
