"""The broker edges: one folder a broker, client libraries imported only there.

::

    app.connection_for_write() ──driver type──► redis     celery_wheel.broker.redis.edge
                                                amqp      celery_wheel.broker.amqp.edge
                                                filesystem  none: its delayed tasks stay Celery's own
                                                others    celery_wheel.broker.virtual.edge
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_wheel.errors import SettingError

if TYPE_CHECKING:
    from celery_wheel.conf import Conf
    from celery_wheel.engine.port import Broker

#: kombu's names (``driver_type``) of transports that cannot do it, and why.
REFUSED = {"filesystem": "it loses messages when several processes read, and when one is killed"}


def refusal(transport: str) -> str | None:
    """Why no edge serves a transport; None if one does."""
    return REFUSED.get(transport)


def check_transport(app: Any) -> None:
    """Raise SettingError if no edge serves the app's transport."""
    transport = app.connection_for_write().transport.driver_type
    if why := refusal(transport):
        raise SettingError(f"broker_url must be of a transport that the wheel serves, got {transport!r}: {why}")


def broker_for(app: Any, conf: Conf, store_uuid: str) -> Broker:
    """The edge for the broker to which this app's tasks are published."""
    check_transport(app)
    if app.connection_for_write().transport.driver_type == "amqp":
        from celery_wheel.broker.amqp.edge import AmqpBroker

        return AmqpBroker(
            app.connection_for_write,
            namespace=conf.namespace,
            max_message_bytes=conf.max_message_bytes,
            keep_eta=conf.keep_eta,
        )
    if app.connection_for_write().transport.driver_type != "redis":
        from celery_wheel.broker.virtual.edge import KombuBroker

        return KombuBroker(
            app, namespace=conf.namespace, max_message_bytes=conf.max_message_bytes, keep_eta=conf.keep_eta
        )
    try:
        from celery_wheel.broker.redis.edge import RedisBroker
    except ImportError as error:
        raise SettingError(
            f"broker_url needs the Redis client, got {error}; run: pip install 'celery-wheel[redis]'"
        ) from error

    options = app.conf.broker_transport_options or {}
    return RedisBroker(
        app.conf.broker_write_url,
        store_uuid=store_uuid,
        namespace=conf.namespace,
        transport_options=options,
        ssl=app.conf.broker_use_ssl,
        max_message_bytes=conf.max_message_bytes,
        keep_eta=conf.keep_eta,
    )
