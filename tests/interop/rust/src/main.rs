//! Conversations of fe2o3-amqp with a broker: interop HOST:PORT PREFIX NAME... prints a line of JSON for each scenario of
//! that name. The broker has a user alice who may do everything, and bob who may use what is below bob.

mod scenarios;

use std::time::Duration;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::messaging::{AmqpValue, Body, Message};
use fe2o3_amqp::types::primitives::Value;
use fe2o3_amqp::{Connection, Delivery, Receiver, Sender, Session};
use serde_json::json;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;
pub type Found = Result<serde_json::Value, Failure>;

const TIMEOUT: Duration = Duration::from_secs(30);

/// What a scenario works with: the queue of this name is its own.
pub struct Scene {
    pub address: String,
    pub name: String,
    pub connection: ConnectionHandle<()>,
    pub session: SessionHandle<()>,
}

impl Scene {
    async fn open(address: &str, name: String, user: &str) -> Result<Scene, Failure> {
        let url = format!("amqp://{user}:secret@{address}");
        let mut connection = Connection::open(format!("{name}-{user}"), url.as_str()).await?;
        let session = Session::begin(&mut connection).await?;
        Ok(Scene {
            address: address.into(),
            name,
            connection,
            session,
        })
    }

    pub async fn another(&self, user: &str) -> Result<Scene, Failure> {
        Scene::open(&self.address, self.name.clone(), user).await
    }

    pub async fn sender(&mut self) -> Result<Sender, Failure> {
        Ok(Sender::attach(&mut self.session, "sender", self.name.as_str()).await?)
    }

    pub async fn receiver(&mut self, name: &str) -> Result<Receiver, Failure> {
        Ok(Receiver::attach(&mut self.session, name, self.name.as_str()).await?)
    }

    pub async fn close(mut self) -> Result<(), Failure> {
        self.session.end().await?;
        Ok(self.connection.close().await?)
    }
}

pub fn message(value: impl Into<Value>) -> Message<AmqpValue<Value>> {
    Message::builder().value(value.into()).build()
}

/// The value that a delivery's body is.
pub fn value(delivery: &Delivery<Body<Value>>) -> Result<&Value, Failure> {
    match delivery.body() {
        Body::Value(found) => Ok(&found.0),
        other => Err(format!("expected a value, found {other:?}").into()),
    }
}

/// So many messages, accepted.
pub async fn take(receiver: &mut Receiver, count: usize) -> Result<Vec<Value>, Failure> {
    let mut found = Vec::with_capacity(count);
    while found.len() < count {
        let delivery = receiver.recv::<Body<Value>>().await?;
        receiver.accept(&delivery).await?;
        found.push(value(&delivery)?.clone());
    }
    Ok(found)
}

async fn played(address: &str, name: &str, queue: String) -> Found {
    let mut scene = Scene::open(address, queue, "alice").await?;
    let found = match name {
        "order" => scenarios::order(&mut scene).await?,
        "types" => scenarios::types(&mut scene).await?,
        "large" => scenarios::large(&mut scene).await?,
        "outcomes" => scenarios::outcomes(&mut scene).await?,
        "presettled" => scenarios::presettled(&mut scene).await?,
        "credit" => scenarios::credit(&mut scene).await?,
        "transaction" => scenarios::transaction(&mut scene).await?,
        "acquire" => scenarios::acquire(&mut scene).await?,
        "resume" => scenarios::resume(&mut scene).await?,
        "enter" => scenarios::enter(&mut scene).await?,
        "detached" => scenarios::detached(&mut scene).await?,
        _ => return Err("there is no scenario of this name".into()),
    };
    scene.close().await?;
    Ok(found)
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    for name in &arguments[3..] {
        let work = played(&arguments[1], name, format!("{}{name}", arguments[2]));
        let found = match tokio::time::timeout(TIMEOUT, work).await {
            Ok(Ok(found)) => found,
            Ok(Err(failure)) => json!({ "failed": format!("{failure}: {failure:?}") }),
            Err(_) => json!({ "failed": format!("it took more than {TIMEOUT:?}") }),
        };
        println!("{}", json!({ "scenario": name, "found": found }));
    }
}
