"""The projects that ``make adopt`` tries: the configuration of each, and the tasks of its own that are delayed.

::

    project.files(place)        the project's configuration, with the two lines of the documentation
    project.start(app)          lets the project send a delayed task of its own, ``waits``
    project.fail(app)           lets it send a task of its own whose first tries a server refuses, ``retries``

A project that is a package has no settings file of its own to edit. So its two lines are in a module of settings that
imports the project's, which is what its administrator would write. ``LINES`` are the two of docs/django.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.adopt.busy import Api, Mail

LINES = 'INSTALLED_APPS += ["django_wheel"]\nCELERY_BEAT_SCHEDULER = "wheel"\n'
#: Where an app reads its settings without a namespace, Celery knows the old names alone.
OLD_LINES = LINES.replace("CELERY_BEAT_SCHEDULER", "CELERYBEAT_SCHEDULER")


@dataclass(frozen=True, slots=True)
class Place:
    """A throw-away installation: its folder, its broker, and the port of the server that is too busy for it."""

    folder: Path
    broker: str
    busy_port: int


@dataclass(frozen=True, slots=True)
class Project:
    """A project of the package index.

    Args:
        app: the module of its Celery app.
        settings: the module of settings that the site uses.
        files: the files of the site by name, for the site's place.
        start: lets the project send ``waits`` with a delay.
        fail: lets the project send ``retries``, which calls the busy server.
        busy: what the busy server speaks.
        suite: settings of the project's own tests.
        tests: its tests of Celery tasks; paths in its sdist, or in its package where ``packaged``.
        refused: tries of ``retries`` that the busy server refuses; the wait before the next one is watched.
        commands: Python's arguments that prepare the site, before migrations.
        environment: variables of every process; ``{folder}`` is the site's.
        worker: arguments of its worker.
        lines: the two lines.
        root: the folder of the site from which its modules are imported.
    """

    app: str
    settings: str
    files: Callable[[Place], Mapping[str, str]]
    start: Callable[[Any], None]
    waits: str
    fail: Callable[[Any], None]
    retries: str
    busy: Callable[..., Any]
    suite: str
    tests: tuple[str, ...]
    refused: int = 1
    commands: tuple[tuple[str, ...], ...] = ()
    environment: Mapping[str, str] | None = None
    worker: tuple[str, ...] = ()
    lines: str = LINES
    packaged: bool = False
    root: str = "."


#: A scheduler of the project's own stays the base: docs/periodic.md.
OFFSETS = 'WHEEL_BASE_SCHEDULER = "allianceauth.crontab.schedulers.OffsetDatabaseScheduler"\n'

#: The tables at once, as pretix's own tests make them: its migrations take minutes.
NO_MIGRATIONS = """

class Tables(dict):
    def __contains__(self, label):
        return True

    def __getitem__(self, label):
        return None


MIGRATION_MODULES = Tables()
"""

#: Port 9 (discard) of this machine, where nothing listens.
CLOSED = "http://127.0.0.1:9/"


def _mail(place: Place) -> str:
    return f"[mail]\nhost=127.0.0.1\nport={place.busy_port}\nfrom=site@example.net\n"


def _store(place: Place, setting: str = "CELERY_WHEEL_STORE") -> str:
    """A store of the site: the default one of a package would outlive it."""
    return f"{setting} = 'sqlite:///{place.folder}/wheel.sqlite3'\n"


# -- pretix: tickets ---------------------------------------------------------------------------------


def _pretix(place: Place) -> Mapping[str, str]:
    return {
        "pretix.cfg": (
            f"[pretix]\ndatadir={place.folder}/data\nurl=http://localhost\n"
            "allow_http_to_private_networks=on\n[database]\nbackend=sqlite3\n"
            f"[celery]\nbroker={place.broker}\nbackend={place.broker}\n{_mail(place)}"
        ),
        "adopted.py": f"from pretix.settings import *\n\n{LINES}{_store(place)}{NO_MIGRATIONS}",
    }


def _refused_webhook(app: Any) -> None:
    """A receiver of webhooks that is down: pretix sends the call again, at first in 5 seconds."""
    from django_scopes import scopes_disabled  # only where the project is installed and set up
    from pretix.base.models import Event, Organizer

    with scopes_disabled():
        organizer = Organizer.objects.create(name="Hall", slug="hall")
        event = Event.objects.create(organizer=organizer, name="Fair", slug="fair", date_from="2030-01-01T10:00:00Z")
        hook = organizer.webhooks.create(target_url=CLOSED)
        logged = event.log_action("pretix.event.changed", data={})
    app.tasks["pretix.api.webhooks.send_webhook"].delay(logged.pk, logged.action_type, hook.pk)


def _forgotten_password(app: Any) -> None:
    """A mail that the mail server refuses for now: pretix tries again 10 seconds later."""
    from pretix.base.models import User

    User.objects.create_user("one@example.net", "long enough, and random").send_password_reset()


# -- Alliance Auth: access for the corporations of a game ---------------------------------------------


def _allianceauth(place: Place) -> Mapping[str, str]:
    database = f'{{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "{place.folder}/db.sqlite3"}}}}'
    cache = f'CACHES["default"]["LOCATION"] = {place.broker!r}'
    contact = 'REGISTRATION_VERIFY_EMAIL = False\nESI_USER_CONTACT_EMAIL = "one@example.org"\n'
    lines = f"{OLD_LINES}{OFFSETS}{_store(place, 'WHEEL_STORE')}"
    discord = (
        'INSTALLED_APPS += ["allianceauth.services.modules.discord"]\n'
        f'DISCORD_API_BASE_URL = "http://127.0.0.1:{place.busy_port}/"\n'
        'DISCORD_APP_ID = DISCORD_APP_SECRET = DISCORD_BOT_TOKEN = DISCORD_GUILD_ID = "1"\n'
        'DISCORD_CALLBACK_URL = "http://localhost/discord/callback/"\n'
    )
    own = f"{contact}DATABASES = {database}\nBROKER_URL = {place.broker!r}\n{cache}\n"
    return {
        "myauth/myauth/settings_here.py": f"from myauth.settings.local import *\n\n{own}",
        "myauth/myauth/adopted.py": f"from myauth.settings_here import *\n\n{discord}{lines}",
    }


def _groups_of_a_user(app: Any) -> None:
    from allianceauth.authentication.models import User

    user = User.objects.create_user("pilot")
    app.tasks["allianceauth.services.tasks.update_groups_for_user"].apply_async((user.pk,), countdown=5)


def _left_discord(app: Any) -> None:
    """An account that Discord's rate limit keeps for now: Alliance Auth tries again when Discord allows it."""
    from allianceauth.authentication.models import User
    from allianceauth.services.modules.discord.auth_hooks import DiscordService
    from allianceauth.services.modules.discord.models import DiscordUser

    account = DiscordUser.objects.create(user=User.objects.create_user("leaver"), uid=1)
    DiscordService().delete_user(account.user)


# -- pretalx: calls for papers -----------------------------------------------------------------------


def _pretalx(place: Place) -> Mapping[str, str]:
    return {
        "pretalx.cfg": (
            f"[filesystem]\ndata={place.folder}/data\n[site]\nurl=http://localhost\n"
            f"[database]\nbackend=sqlite3\nname={place.folder}/db.sqlite3\n"
            f"[celery]\nbroker={place.broker}\nbackend={place.broker}\n{_mail(place)}"
        ),
        "adopted.py": f"from pretalx.settings import *\n\n{LINES}{_store(place)}",
    }


def _replaced_avatar(app: Any) -> None:
    """A picture that its owner has replaced: pretalx removes the former file 10 seconds later."""
    from django.core.files.base import ContentFile
    from pretalx.person.models import User

    user = User.objects.create_user(password="long enough, and random", email="one@example.org")  # noqa: S106
    user.avatar.save("first.png", ContentFile(b"first"))
    user.avatar.save("second.png", ContentFile(b"second"))


def _recovered_password(app: Any) -> None:
    """A mail that the mail server refuses twice: pretalx tries again 1, then 4 seconds later."""
    from pretalx.person.models import User

    user = User.objects.create_user(password="long enough, and random", email="two@example.net")  # noqa: S106
    user.reset_password(event=None, orga=True)


PROJECTS = {
    "pretix": Project(
        app="pretix.celery_app",
        settings="adopted",
        files=_pretix,
        start=_refused_webhook,
        waits="pretix.api.webhooks.send_webhook",
        fail=_forgotten_password,
        retries="pretix.base.services.mail.mail_send_task",
        busy=Mail,
        suite="pretix.testutils.settings",
        tests=("src/tests/base/test_webhooks.py", "src/tests/base/test_mail.py", "src/tests/api/test_webhooks.py"),
        environment={"PRETIX_CONFIG_FILE": "{folder}/pretix.cfg"},
    ),
    "allianceauth": Project(
        app="myauth.celery",
        settings="myauth.adopted",
        files=_allianceauth,
        start=_groups_of_a_user,
        waits="allianceauth.services.tasks.update_groups_for_user",
        fail=_left_discord,
        retries="discord.delete_user",
        busy=Api,
        suite="myauth.settings_here",
        tests=(
            "admin_status/tests/test_tasks.py",
            "analytics/tests/test_tasks.py",
            "authentication/task_statistics/tests",
            "authentication/tests/core/test_celery_workers.py",
            "eveonline/tests/test_tasks.py",
            "services/tests/test_tasks.py",
        ),
        worker=("-Q", "celery,services"),
        commands=(("-m", "allianceauth.bin.allianceauth", "start", "myauth"),),
        lines=OLD_LINES + OFFSETS,
        packaged=True,
        root="myauth",
    ),
    "pretalx": Project(
        app="pretalx.celery_app",
        settings="adopted",
        files=_pretalx,
        start=_replaced_avatar,
        waits="pretalx.cleanup_file",
        fail=_recovered_password,
        retries="pretalx.common.send_mail",
        refused=2,
        busy=Mail,
        suite="pretalx.common.settings.test_settings",
        tests=(
            "src/tests/common/test_common_mail.py",
            "src/tests/common/test_update_check.py",
            "src/tests/event/test_event_services.py",
            "src/tests/mail/test_mail_models.py",
            "src/tests/person/test_person_tasks.py",
        ),
        environment={"PRETALX_CONFIG_FILE": "{folder}/pretalx.cfg"},
    ),
}
