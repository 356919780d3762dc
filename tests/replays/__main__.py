"""``python -m tests.replays``: write the replay of this version."""

from celery_wheel.values import __version__
from tests.replays.making import main
from tests.replays.places import ROOT

main(ROOT / __version__)
