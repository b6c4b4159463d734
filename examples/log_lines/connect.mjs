// A rhea connection from a URL such as amqp://USER:PASSWORD@HOST:PORT.

import rhea from "rhea";

export function connect(text) {
  const url = new URL(text);
  const tls = url.protocol === "amqps:" ? { transport: "tls", servername: url.hostname } : {};
  const user = url.username
    ? { username: decodeURIComponent(url.username), password: decodeURIComponent(url.password) }
    : {};
  const port = Number(url.port || (tls.transport ? 5671 : 5672));
  const connection = rhea.connect({ host: url.hostname, port, reconnect: false, ...tls, ...user });
  const fail = ({ error }) => {
    console.error(`no connection to ${url.host}: ${error?.message ?? "closed"}`);
    process.exit(1);
  };
  connection.on("connection_error", fail);
  connection.on("disconnected", fail);
  return connection;
}
