//! The companies' templates as acceptance uses them: read through the store, compiled once, kept for a moment.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::CompanyId;
use store::{Store, StoreError, StoredTemplate};
use tokio::time::Instant;

pub use template::{BODY_BYTES_MAX, Problem, RenderError, Rendered, SUBJECT_BYTES_MAX, Source, Template};

/// A new version that another process wrote is used at the latest after this.
const AGE_MAX: Duration = Duration::from_secs(1);
/// Compiled templates that are kept; the largest weigh half a megabyte.
const TEMPLATES_MAX: usize = 256;

/// Which template, and which version of it; `None` is the newest.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TemplateName {
    pub name: String,
    pub version: Option<u32>,
}

type Place = (CompanyId, TemplateName);

#[derive(Default)]
pub struct TemplateShelf {
    known: Mutex<HashMap<Place, (Instant, Arc<Template>)>>,
}

impl TemplateShelf {
    /// `None` when the company has no such template.
    pub async fn get(
        &self,
        store: &dyn Store,
        company: CompanyId,
        name: &TemplateName,
    ) -> Result<Option<Arc<Template>>, StoreError> {
        let place = (company, name.clone());
        let fresh = |(read_at, template): &(Instant, Arc<Template>)| {
            (read_at.elapsed() < AGE_MAX).then(|| template.clone())
        };
        if let Some(template) = self.known().get(&place).and_then(fresh) {
            return Ok(Some(template));
        }
        let read_at = Instant::now();
        let Some(stored) = store.template(company, &name.name, name.version).await? else { return Ok(None) };
        let template = Arc::new(compile(&stored)?);
        let mut known = self.known();
        if known.len() >= TEMPLATES_MAX {
            known.retain(|_, (read_at, _)| read_at.elapsed() < AGE_MAX);
        }
        if known.len() < TEMPLATES_MAX {
            known.insert(place, (read_at, template.clone()));
        }
        Ok(Some(template))
    }

    /// This process wrote or deleted templates of the company.
    pub fn changed(&self, company: CompanyId) {
        self.known().retain(|(owner, _), _| *owner != company);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Place, (Instant, Arc<Template>)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The source as it is kept.
pub fn encode(source: &Source) -> String {
    serde_json::to_string(source).expect("texts can be written as JSON")
}

/// The source of a template that was kept.
pub fn source_of(stored: &StoredTemplate) -> Result<Source, StoreError> {
    serde_json::from_str(&stored.source)
        .map_err(|_| StoreError::Broken(format!("the template {} cannot be read", stored.name)))
}

/// A template was checked before it was kept, so that it does not compile is damage.
fn compile(stored: &StoredTemplate) -> Result<Template, StoreError> {
    Template::compile(&source_of(stored)?)
        .map_err(|_| StoreError::Broken(format!("the template {} does not compile", stored.name)))
}
