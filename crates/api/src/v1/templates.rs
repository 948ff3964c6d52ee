//! `/v1/templates…`: a company's templates, written, read, tried out. Whether a source compiles is decided here, before
//! it is kept; whether the html it makes may be sent is decided when an email is accepted.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use gateway::accept::draft::Fault;
use gateway::accept::text;
use gateway::accept::to_the_end;
use gateway::templates::{Problem as Flaw, RenderError, Source, Template, TemplateName, encode, source_of};
use model::CompanyId;
use serde_json::{Value, json};
use store::{StoreError, StoredTemplate};

use super::answer;
use super::draft::passes;
use super::params::read_query;
use super::send::decide;
use crate::auth::Client;
use crate::body::{self, Taken};
use crate::error::Problem;
use crate::form::{At, Faults, Form};
use crate::json as json_body;
use crate::limits::{
    FAULTS_MAX, PREVIEW_BODY_BYTES_MAX, TEMPLATE_BODY_BYTES_MAX, TEMPLATES_MAX, WORD_LENGTH_MAX,
};
use crate::state::ApiState;

pub const FIELDS: &[&str] = &["subject", "html", "mjml", "text"];
pub const PREVIEW_FIELDS: &[&str] = &["variables", "version"];
pub const GET_PARAMETERS: &[&str] = &["version"];

type InPath = Result<Path<String>, PathRejection>;

/// The newest version of each, without the sources.
pub async fn list(State(state): State<ApiState>, client: Client) -> Result<Response, Problem> {
    let templates = state.desk.gateway.store.templates(client.id()).await?;
    let show = |stored: &StoredTemplate| {
        json!({
            "name": stored.name, "version": stored.version, "createdAt": stored.created_at.to_rfc3339(),
        })
    };
    let data: Vec<Value> = templates.iter().map(show).collect();
    Ok(answer::value(StatusCode::OK, &json!({ "data": data })))
}

pub async fn get(
    State(state): State<ApiState>,
    client: Client,
    name: InPath,
    uri: Uri,
) -> Result<Response, Problem> {
    let name = name_of(name).ok_or_else(missing)?;
    let version = read_query(&uri, GET_PARAMETERS, version)?;
    let found = state.desk.gateway.store.template(client.id(), &name, version).await?;
    let stored = found.ok_or_else(missing)?;
    let source = source_of(&stored)?;
    let template = compile(source.clone()).await.map_err(|_| does_not_compile(&stored))?;
    let mut shown = head(&stored, &template);
    shown["subject"] = Value::from(source.subject);
    for (part, text) in [("html", source.html), ("mjml", source.mjml), ("text", source.text)] {
        if let Some(text) = text {
            shown[part] = Value::from(text);
        }
    }
    Ok(answer::value(StatusCode::OK, &shown))
}

/// Writes the next version, if the source compiles.
pub async fn put(
    State(state): State<ApiState>,
    client: Client,
    name: InPath,
    request: Request,
) -> Result<Response, Problem> {
    let (source, _taken) = read_body(&state, request, TEMPLATE_BODY_BYTES_MAX, read).await?;
    let (name, source) = match (name_of(name), source) {
        (Some(name), Ok(source)) => (name, source),
        (name, source) => {
            let mut faults = source.err().unwrap_or_default();
            if name.is_none() {
                faults.insert(0, wrong_name());
            }
            return Err(faults.into());
        }
    };
    let template = compile(source.clone()).await.map_err(|flaws| Problem::from(faults_of(flaws)))?;
    let stored = keep(&state, client.id(), name, &source).await?;
    Ok(answer::value(StatusCode::OK, &head(&stored, &template)))
}

async fn keep(
    state: &ApiState,
    company: CompanyId,
    name: String,
    source: &Source,
) -> Result<StoredTemplate, Problem> {
    let (gateway, encoded, now) = (state.desk.gateway.clone(), encode(source), state.now());
    let kept = to_the_end(async move {
        let store = &gateway.store;
        if store.template(company, &name, None).await?.is_none()
            && store.templates(company).await?.len() >= TEMPLATES_MAX
        {
            return Ok(Err(too_many()));
        }
        let version = store.put_template(company, &name, &encoded, now).await;
        gateway.templates.changed(company);
        // The same source again is the version there was, with its own time.
        let stored = store.template(company, &name, Some(version?)).await?;
        Ok::<_, StoreError>(stored.ok_or_else(missing))
    });
    kept.await?
}

pub async fn remove(
    State(state): State<ApiState>,
    client: Client,
    name: InPath,
) -> Result<Response, Problem> {
    let name = name_of(name).ok_or_else(missing)?;
    let (gateway, company) = (state.desk.gateway.clone(), client.id());
    let deleted = to_the_end(async move {
        let deleted = gateway.store.delete_template(company, &name).await;
        gateway.templates.changed(company);
        deleted
    });
    if deleted.await? { Ok(answer::no_content()) } else { Err(missing()) }
}

/// What the template makes of these variables; nothing is sent or stored.
pub async fn preview(
    State(state): State<ApiState>,
    client: Client,
    name: InPath,
    request: Request,
) -> Result<Response, Problem> {
    let (order, _taken) = read_body(&state, request, PREVIEW_BODY_BYTES_MAX, read_preview).await?;
    let (variables, version) = order?;
    let name = TemplateName { name: name_of(name).ok_or_else(missing)?, version };
    let gateway = &state.desk.gateway;
    let template = gateway.templates.get(&*gateway.store, client.id(), &name).await?.ok_or_else(missing)?;
    let rendered = blocking(move || template.render(&variables)).await;
    let rendered = rendered.map_err(|error| Problem::from(render_faults(error)))?;
    let body = json!({ "subject": rendered.subject, "html": rendered.html, "text": rendered.text });
    Ok(answer::value(StatusCode::OK, &body))
}

/// The body and what was read of it; it takes up room until the request is answered.
async fn read_body<T: Send + 'static>(
    state: &ApiState,
    request: Request,
    max: usize,
    read: fn(Value) -> T,
) -> Result<(T, Taken), Problem> {
    let (parts, incoming) = request.into_parts();
    body::require_type(&parts.headers, body::JSON)?;
    let taken = body::take(state, &parts.headers, incoming, max).await?;
    decide(taken, move |bytes| Ok(read(json_body::read(bytes)?))).await
}

fn read(body: Value) -> Result<Source, Vec<Fault>> {
    let faults = Faults::default();
    let source = Form::open(body, At::Root, FIELDS, &faults).and_then(|mut form| {
        match (form.has("html"), form.has("mjml")) {
            (false, false) => form.fault("html", "REQUIRED", "or mjml is required"),
            (true, true) => form.fault("mjml", "CONFLICTING_FIELDS", "cannot be given together with html"),
            _ => {}
        }
        let subject = form.required_text("subject");
        let mut part = |name| form.text(name).filter(|part| passes(&form, name, text::body(part)));
        let (html, mjml, text) = (part("html"), part("mjml"), part("text"));
        form.finish();
        Some(Source { subject: subject?, html, mjml, text })
    });
    match (source, faults.into_vec()) {
        (Some(source), faults) if faults.is_empty() => Ok(source),
        (_, faults) => Err(faults),
    }
}

fn read_preview(body: Value) -> Result<(Value, Option<u32>), Problem> {
    let faults = Faults::default();
    let read = Form::open(body, At::Root, PREVIEW_FIELDS, &faults).map(|mut form| {
        let variables = form.take("variables").unwrap_or_default();
        if !(variables.is_object() || variables.is_null()) {
            form.fault("variables", "INVALID_TYPE", "must be an object");
        }
        let version = version(&mut form);
        form.finish();
        (variables, version)
    });
    match (read, faults.into_vec()) {
        (Some(read), faults) if faults.is_empty() => Ok(read),
        (_, faults) => Err(faults.into()),
    }
}

fn version(form: &mut Form<'_>) -> Option<u32> {
    form.whole("version", 1..=u64::from(u32::MAX)).and_then(|number| u32::try_from(number).ok())
}

/// Compiling MJML and rendering may take long enough to hold up other requests.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    to_the_end(async move {
        match tokio::task::spawn_blocking(work).await {
            Ok(done) => done,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    })
    .await
}

async fn compile(source: Source) -> Result<Template, Vec<Flaw>> {
    blocking(move || Template::compile(&source)).await
}

fn name_of(path: InPath) -> Option<String> {
    let is_fine = |name: &String| {
        (1..=WORD_LENGTH_MAX).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    path.ok().map(|Path(name)| name).filter(is_fine)
}

fn wrong_name() -> Fault {
    let message = format!("must have 1 to {WORD_LENGTH_MAX} small letters, digits or hyphens");
    Fault::wrong("name", "INVALID_NAME", message)
}

fn missing() -> Problem {
    Problem::not_found("TEMPLATE_NOT_FOUND", "there is no template of this name and version")
}

fn too_many() -> Problem {
    let detail = format!("a company has at most {TEMPLATES_MAX} templates; delete one first");
    Problem::new(StatusCode::CONFLICT, "TOO_MANY_TEMPLATES", detail)
}

fn does_not_compile(stored: &StoredTemplate) -> Problem {
    tracing::error!(template = stored.name, version = stored.version, "a stored template does not compile");
    Problem::internal()
}

/// One fault per problem, with the line where it is known.
fn faults_of(flaws: Vec<Flaw>) -> Vec<Fault> {
    let fault = |flaw: Flaw| {
        let message = match flaw.line {
            Some(line) => format!("line {line}: {}", flaw.message),
            None => flaw.message,
        };
        Fault::unacceptable(flaw.field.as_str(), "TEMPLATE_INVALID", message)
    };
    flaws.into_iter().take(FAULTS_MAX).map(fault).collect()
}

/// In the words an email with this template would be refused.
fn render_faults(error: RenderError) -> Vec<Fault> {
    match error {
        RenderError::MissingVariables(names) => names
            .into_iter()
            .map(|name| {
                let field = format!("variables.{name}");
                Fault::unacceptable(field, "MISSING_VARIABLE", "is missing; the template needs it")
            })
            .collect(),
        other => vec![Fault::unacceptable("template", "TEMPLATE_ERROR", format!("makes no email: {other}"))],
    }
}

fn head(stored: &StoredTemplate, template: &Template) -> Value {
    json!({
        "name": stored.name,
        "version": stored.version,
        "variables": template.variables(),
        "createdAt": stored.created_at.to_rfc3339(),
    })
}
