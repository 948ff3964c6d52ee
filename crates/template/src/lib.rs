//! Templates of emails: checked, rendered within limits, missing variables named.
