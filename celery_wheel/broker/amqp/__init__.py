"""The edge for RabbitMQ, over py-amqp, the client that kombu uses itself.

::

    link       one connection: made as kombu makes it, kept alive, its troubles as BrokerError
    message    an AMQP message as the store keeps it, and back
    ingress    the wheel queue: deliveries that are acknowledged after the commit
    window     publishing with hundreds of confirms outstanding
    edge       all of it as ``engine.port.Broker``
"""
