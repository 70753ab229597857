"""tfviz: see inside a Transformer. Run `python app.py` and open the address it prints."""

import logging
import sys

from tfviz.config import Settings
from tfviz.errors import TfvizError
from tfviz.ui.shell import build_app, launch

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
logging.getLogger("httpx").setLevel(logging.WARNING)  # Gradio asks itself whether it is up
try:
    settings = Settings.from_environment()
except TfvizError as error:
    sys.exit(str(error))
demo = build_app(settings)

if __name__ == "__main__":
    launch(demo, settings)
