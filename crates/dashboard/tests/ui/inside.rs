//! The client the pages are made with: it may what the one may on whose behalf it calls, and no more.

use api::inside::Behalf;
use model::{CompanyId, Timestamp};
use serde_json::json;

use crate::world::world;

#[tokio::test]
async fn a_call_may_what_its_behalf_may() {
    let world = world().await;
    let id = world.email(json!({})).await;
    let email = format!("/v1/emails/{id}");
    let all = world.inside.get(Behalf::Operator, "/v1/admin/companies").await;
    let ids = all.body["data"].as_array().expect("companies").iter();
    let mut ids = ids.map(|company| company["id"].as_str().expect("an id").parse().expect("an id"));
    let other: CompanyId = ids.find(|id| *id != world.shop).expect("another company");
    let (shop, other) = (Behalf::Company(world.shop), Behalf::Company(other));
    let nobody = Behalf::Company(CompanyId::new(Timestamp::from_millis(1)));
    let cases = [
        // behalf, path, status, code
        (shop, email.as_str(), 200, ""),
        (shop, "/v1/emails?limit=1", 200, ""),
        (other, &email, 404, "EMAIL_NOT_FOUND"),
        (nobody, &email, 404, "COMPANY_NOT_FOUND"),
        (Behalf::Operator, &email, 403, "INSUFFICIENT_SCOPE"),
        (shop, "/v1/admin/companies", 403, "INSUFFICIENT_SCOPE"),
        (Behalf::Operator, "/v1/admin/providers", 200, ""),
        (Behalf::Operator, "/livez", 200, ""),
        (shop, "no path at all", 404, "ROUTE_NOT_FOUND"),
    ];
    for (behalf, path, status, code) in cases {
        let answer = world.inside.get(behalf, path).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (status, code), "{behalf:?} {path}");
    }
}

#[tokio::test]
async fn a_company_that_is_switched_off_can_still_be_looked_at() {
    let world = world().await;
    let id = world.email(json!({})).await;
    let path = format!("/v1/admin/companies/{}", world.shop);
    let answer = world.inside.patch(Behalf::Operator, &path, &json!({ "disabled": true })).await;
    assert!(answer.is_fine(), "{}", answer.body);
    assert_eq!(world.status_of(&id).await, "ENQUEUED");
}

/// What comes over the network has no way to say that it comes from within.
#[tokio::test]
async fn nobody_outside_is_let_pass() {
    let world = world().await;
    for name in ["x-behalf", "behalf", "pass", "x-pass", "x-operator"] {
        let call = world.get("/v1/emails").header(name, "operator");
        assert_eq!(call.send().await.status, 401, "{name}");
    }
    let call = world.get("/v1/admin/companies").peer("192.0.2.1:5000");
    assert_eq!(call.send().await.status, 403);
}
