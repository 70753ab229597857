"""How far two right computations of the same numbers may lie apart: for every check on the page and every test.

Right programs round differently: another processor, another number of threads, another kernel or a padded row adds the
same summands in another order. In FP32 each addition is off by at most eps / 2 of the largest partial sum, so a sum of
n terms by about sqrt(n) eps of it, however small the sum itself comes out. FP16 and BF16 are added up in FP32, and only
what is stored between two operations is rounded: a few eps, whatever n. So a difference is judged as a share of the
largest number among what is compared, and allowed is, whatever the order:

    once     128 eps = 1.5e-5 in FP32: a product or two; 64 eps for 4,096 terms, on either side. FP16, BF16: 8 eps
    layers  1024 eps = 1.2e-4 in FP32: operations in a row; softmax passes on more than it was given. FP16, BF16: 16 eps

What lies between 0 and 1 (weights, probabilities, shares) has the size 1.
"""

FP32, FP16, BF16 = 2.0**-23, 2.0**-10, 2.0**-7  # eps: the step at 1.0
EPS = {"fp32": FP32, "int8": FP32, "fp16": FP16, "bf16": BF16, "int8_weights": BF16, "int4": BF16}  # of activations


def once(precision: str = "fp32") -> float:
    """Allowed after one operation, or two, as a share of the largest number."""
    eps = EPS[precision]
    return (128 if eps == FP32 else 8) * eps


def layers(precision: str = "fp32") -> float:
    """Allowed after operations in a row, up to a whole model in FP32, as a share of the largest number."""
    eps = EPS[precision]
    return (1024 if eps == FP32 else 16) * eps
