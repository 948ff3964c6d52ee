//! The four validations of the pipeline.

pub mod html;
