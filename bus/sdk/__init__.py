"""The adapter for a2a-sdk: any `RequestHandler` served by this bus, and a transport for the SDK's `Client`.

    server = await bus.serve("amqp://…", "echo", sdk_agent(handler))

    factory = ClientFactory(config)
    register(factory, broker="amqps://user:password@host/vhost")
    client = factory.create(card)

Protobuf stays in here. It needs the extra `sdk`.
"""

from bus.sdk.agent import sdk_agent
from bus.sdk.push import WebhookSender, validator
from bus.sdk.transport import BROKER, ONCE, AmqpTransport, register, within

__all__ = ["BROKER", "ONCE", "AmqpTransport", "WebhookSender", "register", "sdk_agent", "validator", "within"]
