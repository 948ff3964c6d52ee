//! Amazon SES as a provider.
