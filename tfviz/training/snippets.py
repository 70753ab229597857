"""Schedules as code to take away: plain PyTorch that gives the same learning rates as `Schedule`."""

from tfviz.training.schedule import WSD_DECAY, Schedule

PARTS = {  # of the function that a snippet defines, each there if a later one names it
    "risen": "risen = min(1.0, step / WARMUP) if WARMUP else 1.0",
    "left": "left = 1.0 if step <= WARMUP else max(0.0, (STEPS - step) / max(STEPS - WARMUP, 1))",
}
RESULTS = {  # by the name of the schedule
    "noam": "return D_MODEL**-0.5 * min(step**-0.5, step * WARMUP**-1.5)",
    "inverse_sqrt": "return PEAK * min(step / WARMUP, (WARMUP / step) ** 0.5)",
    "linear": "return PEAK * risen * left",
    "cosine": "return PEAK * risen * (1 - math.cos(math.pi * left)) / 2",
    "wsd": f"return PEAK * risen * min(1.0, left / {WSD_DECAY})",
    "constant": "return PEAK * risen",
}


def lambda_lr(schedule: Schedule) -> str:
    """Code that makes an optimiser and a scheduler for `model`; `scheduler.step()` follows each `optimizer.step()`."""
    result = RESULTS[schedule.name]
    function = [line for name, line in PARTS.items() if name in result] + [result]
    used = "\n".join(function)
    numbers = {
        "D_MODEL": schedule.d_model,
        "WARMUP": schedule.warmup_steps,
        "STEPS": schedule.total_steps,
        "PEAK": schedule.highest,
    }
    return "\n".join(
        [
            *(["import math", ""] if "math." in used else []),
            "import torch",
            "from torch.optim.lr_scheduler import LambdaLR",
            "",
            *(f"{name} = {value!r}" for name, value in numbers.items() if name in used),
            "",
            "",
            "def rate(step):",
            "    step += 1  # LambdaLR counts from 0",
            *(f"    {line}" for line in function),
            "",
            "",
            "optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)",
            "scheduler = LambdaLR(optimizer, rate)",
            "",
        ]
    )
