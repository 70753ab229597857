"""Training, from scratch: the article's schedule and loss, tasks learnt in minutes, a loop that shows its steps."""

from tfviz.training.loop import Recipe, Record, Run, train
from tfviz.training.loss import LabelSmoothingLoss, smoothed_targets
from tfviz.training.schedule import Schedule, linear_decay, noam_lr
from tfviz.training.tasks import TASKS

__all__ = [
    "TASKS",
    "LabelSmoothingLoss",
    "Recipe",
    "Record",
    "Run",
    "Schedule",
    "linear_decay",
    "noam_lr",
    "smoothed_targets",
    "train",
]
