"""The edge for RabbitMQ, over py-amqp, the client of kombu itself.

::

    frames      properties and frames as bytes: many messages in one write, many frames in one read
    link        a connection: opened as kombu opens it, kept alive, its errors raised as BrokerError
    publisher   the messages of rows, with hundreds of confirms outstanding
    edge        ``engine.port.ConfirmingBroker``, with the wheel queue and the note about its holder
"""
