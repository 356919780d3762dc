"""The edge for RabbitMQ, over py-amqp, the client that kombu uses itself.

::

    link        a connection: opened as kombu opens it, kept alive, its errors raised as BrokerError
    frames      frames as bytes: many messages in one write, many frames in one read
    properties  the bytes of properties and headers, as py-amqp writes and reads them
    message     conversion between AMQP messages and rows
    ingress     the wheel queue: deliveries that are acknowledged after the commit
    publisher   publishing with hundreds of confirms outstanding
    edge        ``engine.port.ConfirmingBroker`` made of these
"""
