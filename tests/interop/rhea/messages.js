"use strict";
// Messages with every AMQP type that rhea can write, in every place; the names are those of test_rhea.py.

const { types } = require("rhea");

const uuid = Buffer.from("0123456789abcdef0123456789abcdef", "hex");

// Made anew for each place: rhea writes the descriptor of a body into the value.
const VALUES = {
  null: () => types.wrap(null),
  true: () => types.wrap_boolean(true),
  false: () => types.wrap_boolean(false),
  ubyte: () => types.wrap_ubyte(255),
  ushort: () => types.wrap_ushort(65_535),
  "uint-0": () => types.wrap_uint(0),
  "uint-small": () => types.wrap_uint(200),
  "uint-max": () => types.wrap_uint(4_294_967_295),
  "ulong-0": () => types.wrap_ulong(0),
  "ulong-small": () => types.wrap_ulong(200),
  ulong: () => types.wrap_ulong(2 ** 40),
  byte: () => types.wrap_byte(-128),
  short: () => types.wrap_short(-32_768),
  "int-small": () => types.wrap_int(-1),
  int: () => types.wrap_int(-2_147_483_648),
  "long-small": () => types.wrap_long(-1),
  long: () => types.wrap_long(-(2 ** 40)),
  float: () => types.wrap_float(0.5),
  double: () => types.wrap_double(3.25),
  char: () => types.wrap_char(0x1f682),
  timestamp: () => types.wrap_timestamp(1_700_000_000_123),
  uuid: () => types.wrap_uuid(uuid),
  binary: () => types.wrap_binary(Buffer.from([0, 1, 255])),
  string: () => types.wrap_string("Zug \u{1f682}"),
  "string-long": () => types.wrap_string("x".repeat(300)),
  symbol: () => types.wrap_symbol("amqp:accepted:list"),
  "list-empty": () => types.wrap_list([]),
  list: () => types.wrap_list([types.wrap_ubyte(1), "two", null, [types.wrap_symbol("three")]]),
  map: () => types.wrap_map({ a: types.wrap_long(1), b: { c: types.wrap_symbol("d") } }),
  "array-of-int": () => types.wrap_array([1, -2, 3], types.Int.typecode),
  "array-of-symbol": () => types.wrap_array(["a", "b"], types.Sym32.typecode),
  "list-described": () => types.wrap_list([types.wrap_described("selector", "example:selector:string")]),
};

const simple = (name) => !/list|map|array/.test(name);

/** name -> message */
function messages() {
  const made = {};
  for (const [name, value] of Object.entries(VALUES)) {
    made[`body-${name}`] = { body: value() };
    made[`annotation-${name}`] = { message_annotations: { [`x-opt-${name}`]: value() }, body: name };
    if (simple(name)) made[`application-property-${name}`] = { application_properties: { [name]: value() }, body: name };
  }
  made.properties = {
    durable: true,
    priority: 9,
    message_id: "id-1",
    user_id: Buffer.from("user"),
    to: "to/here",
    subject: "a subject",
    reply_to: "reply/here",
    correlation_id: 7,
    content_type: "text/plain",
    content_encoding: "gzip",
    absolute_expiry_time: new Date(4_102_444_800_000),
    creation_time: new Date(1_700_000_000_125),
    group_id: "group",
    group_sequence: 5,
    reply_to_group_id: "reply-group",
    body: "properties",
  };
  return made;
}

module.exports = { messages };
