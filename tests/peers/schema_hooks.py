"""What schemathesis has to be told of our API: how an .eml travels. Named by SCHEMATHESIS_HOOKS."""

import schemathesis


@schemathesis.serializer("message/rfc822")
def eml(ctx, value):
    """Generated bodies go out as they are; text becomes bytes."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
