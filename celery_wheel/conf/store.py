"""``wheel_store``: the rule for its URL, and where the store is in a project that names none.

::

    Django               BASE_DIR/celery-wheel.sqlite3
    any other project    the folder from which the module that makes the app is imported: beside its top package
    neither can be       $XDG_STATE_HOME/celery-wheel/<app>-<digest of the folder>/celery-wheel.sqlite3
    written to, or known     a file that exists already goes before one that can be made

No place depends on the working folder, so all processes of a project find the same file. A process that may not write
to the project's folder finds the file that beat has made there.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from celery_wheel.conf.setting import Rule, accepted
from celery_wheel.errors import SettingError
from celery_wheel.values.text import EXAMPLES, is_store_url

#: The name of the default store's file, and of the folder with the stores of a user's projects.
FILE, STATE = "celery-wheel.sqlite3", "celery-wheel"

#: Packages whose frames and modules are not the project's.
_OTHERS = ("celery", "celery_wheel", "django_wheel", "kombu", "billiard")

#: App → file of its module, for apps of Celery's own class.
_modules = WeakKeyDictionary[Any, str]()


#: A URL that a store can have; whether the database exists is seen when it is opened.
STORE_URL: Rule[str] = accepted(
    f"a database URL like {EXAMPLES}", lambda value: isinstance(value, str) and is_store_url(value)
)


def default_file(app: Any, django: Any) -> Path:
    """Return the file of the default store; ``django`` is the settings of the Django project, None without one.

    Raises SettingError where no folder is known.
    """
    base = Path(getattr(django, "BASE_DIR", None) or "")
    folder = base if base.is_absolute() else project_folder(app)
    paths = [path for path in (folder and folder / FILE, _state_file(app, folder)) if path]
    if not paths:
        raise SettingError(
            "wheel_store must be set where neither the project's folder nor a home folder is known, got no value; "
            f"set it to a database URL like {EXAMPLES}"
        )
    for path in paths:
        if path.exists():
            return path
    return paths[0] if folder is None or os.access(folder, os.W_OK | os.X_OK) else paths[-1]


def make_state_folder(url: str) -> None:
    """Make the folder of a default store that is in the user's folder for states. Raises SettingError if that fails."""
    path = Path(url.removeprefix("sqlite:///"))
    if path.parts[-3::2] != (STATE, FILE):
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            "wheel_store must be set where this user may write neither to the project's folder nor to the one for "
            f"states, got no value ({error}); set it to a database URL like {EXAMPLES}"
        ) from error


def project_folder(app: Any) -> Path | None:
    """Return the folder from which the module that makes the app is imported; None where that is no project's."""
    found = vars(app).get("_wheel_module") or _modules.get(app)
    if found is None:
        found = _modules[app] = _module_of(app)
    folder = Path(found).absolute().parent if found else None
    while folder is not None and (folder / "__init__.py").exists():
        folder = folder.parent
    return None if folder is None or {"site-packages", "dist-packages"} & set(folder.parts) else folder


def calling_module(app: Any) -> str:
    """Return the file of the module that calls the constructor of the app; empty where it has none."""
    frame = sys._getframe(1)
    while frame is not None:
        of_app = frame.f_locals.get("self") is app
        if not of_app and frame.f_globals.get("__name__", "").partition(".")[0] not in _OTHERS:
            return str(frame.f_globals.get("__file__") or "")
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _module_of(app: Any) -> str:
    """Return the file of a module that has the app, which Celery's own class has made; empty where there is none.

    Several may have it: that of the app's name goes first, and the script that was started last.
    """
    found = []
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name.partition(".")[0] not in _OTHERS and any(one is app for one in [*vars(module).values()]):
            found.append((name in ("__main__", "__mp_main__"), name.partition(".")[0] != app.main, name, str(file)))
    return min(found)[-1] if found else ""


def _state_file(app: Any, folder: Path | None) -> Path | None:
    """Return the file in the user's folder for states, apart from those of other projects; None without a home."""
    given = Path(os.environ.get("XDG_STATE_HOME") or "")
    try:
        state = given if given.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:  # the user has no home
        return None
    digest = hashlib.blake2s(os.fsencode(folder or ""), digest_size=4).hexdigest()
    name = re.sub(r"[^A-Za-z0-9._-]", "_", app.main or "celery")
    return state / STATE / f"{name}-{digest}" / FILE
