//! CPF and CNPJ.
