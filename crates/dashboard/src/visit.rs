//! One request for a page: who asks, which companies there are, and which of them the page is about.

use api::inside::{Answer, Behalf};
use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use axum::response::Response;
use model::{CompanyId, Timestamp};
use serde_json::{Value, json};

use crate::guard::{Role, Visitor};
use crate::links::step;
use crate::state::Ui;
use crate::{layout, pages};

/// A company as the operator sees it.
#[derive(Debug, Clone)]
pub struct Place {
    pub id: CompanyId,
    pub name: String,
    /// As the API shows it.
    pub shown: Value,
}

impl Place {
    fn read(shown: &Value) -> Option<Self> {
        let id = shown["id"].as_str()?.parse().ok()?;
        Some(Self { id, name: shown["name"].as_str()?.to_owned(), shown: shown.clone() })
    }

    /// The address of a page of this company; `below` starts with a slash or is empty.
    pub fn path(&self, below: &str) -> String {
        format!("/ui/c/{}{below}", step(&self.name))
    }

    pub fn admin_path(&self, below: &str) -> String {
        format!("/v1/admin/companies/{}{below}", self.id)
    }
}

const OPERATORS: &str = "This is for whoever runs this server.";

/// What all pages share.
pub struct Visit {
    pub ui: Ui,
    pub visitor: Visitor,
    pub now: Timestamp,
    pub companies: Vec<Place>,
}

impl Visit {
    /// A call of the operator's; nobody else gets an answer.
    pub async fn get(&self, path: &str) -> Answer {
        if self.is_operator() {
            self.ui.inside.get(Behalf::Operator, path).await
        } else {
            Answer::forbidden(OPERATORS)
        }
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        if self.is_operator() {
            self.ui.inside.post(Behalf::Operator, path, body).await
        } else {
            Answer::forbidden(OPERATORS)
        }
    }

    pub fn is_operator(&self) -> bool {
        self.visitor.role.is_operator()
    }

    /// Whether this person may change anything.
    pub fn may_act(&self) -> bool {
        self.visitor.role.may_act()
    }
}

/// The companies this person may see.
async fn companies(ui: &Ui, role: Role) -> Answer {
    match role.only_company() {
        None => ui.inside.get(Behalf::Operator, "/v1/admin/companies").await,
        Some(own) => {
            let mut answer = ui.inside.get(Behalf::Operator, &format!("/v1/admin/companies/{own}")).await;
            if matches!(role, Role::Reader(_)) {
                answer = answer.masked();
            }
            if answer.is_fine() {
                answer.body = json!({ "data": [answer.body] });
            }
            answer
        }
    }
}

impl FromRequestParts<Ui> for Visit {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, ui: &Ui) -> Result<Self, Response> {
        let visitor = Visitor::from_request_parts(parts, ui).await.map_err(pages::broken)?;
        let answer = companies(ui, visitor.role).await;
        if !answer.is_fine() {
            let main = layout::problem(&answer);
            return Err(layout::bare(&ui.assets, answer.status, "Not now", &main));
        }
        let mut companies: Vec<Place> =
            answer.body["data"].as_array().into_iter().flatten().filter_map(Place::read).collect();
        companies.sort_by_key(|place| place.name.to_lowercase());
        Ok(Self { ui: ui.clone(), visitor, now: ui.inside.now(), companies })
    }
}

/// A visit to a page of one company.
pub struct At {
    pub visit: Visit,
    pub place: Place,
}

impl At {
    fn behalf(&self) -> Behalf {
        match self.visit.visitor.role {
            Role::Reader(_) => Behalf::Reader(self.place.id),
            Role::Operator | Role::Member(_) => Behalf::Company(self.place.id),
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.visit.ui.inside.get(self.behalf(), path).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.visit.ui.inside.post(self.behalf(), path, body).await
    }

    /// A post that counts once, however often it is made with this idempotency key.
    pub async fn post_once(&self, path: &str, body: &Value, key: &str) -> Answer {
        self.visit.ui.inside.post_once(self.behalf(), path, body, key).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.visit.ui.inside.delete(self.behalf(), path).await
    }
}

impl FromRequestParts<Ui> for At {
    type Rejection = Response;

    /// The company by its name, which is unique; also by its id, which never changes.
    async fn from_request_parts(parts: &mut Parts, ui: &Ui) -> Result<Self, Response> {
        let visit = Visit::from_request_parts(parts, ui).await?;
        let params = RawPathParams::from_request_parts(parts, ui).await;
        let wanted = params.ok().and_then(|params| {
            params.iter().find(|(name, _)| *name == "company").map(|(_, value)| value.to_owned())
        });
        let wanted = wanted.unwrap_or_default();
        let by_name = visit.companies.iter().find(|place| place.name == wanted);
        let found = by_name.or_else(|| visit.companies.iter().find(|place| place.id.to_string() == wanted));
        match found.cloned() {
            Some(place) => Ok(Self { visit, place }),
            None => Err(pages::no_company(&visit)),
        }
    }
}
