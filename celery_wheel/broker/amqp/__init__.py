"""The edge for RabbitMQ, over py-amqp, the client that kombu uses itself.

::

    frames      properties and frames as bytes: many messages in one write, many frames in one read
    link        a connection: opened as kombu opens it, kept alive, its errors raised as BrokerError
    message     conversion between AMQP messages and rows
    holder      the note about the holder of a wheel queue
    publisher   publishing with hundreds of confirms outstanding
    edge        ``engine.port.ConfirmingBroker`` made of these, with the wheel queue
"""
