package main

import (
	"fmt"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/Azure/go-amqp"
)

// Every type that go-amqp can write; the names are those of test_go_amqp.py. It has neither char nor decimals.
var values = map[string]any{
	"true": true, "false": false,
	"ubyte": uint8(255), "ushort": uint16(65_535),
	"uint-0": uint32(0), "uint-small": uint32(200), "uint-max": uint32(1<<32 - 1),
	"ulong-0": uint64(0), "ulong-small": uint64(200), "ulong": uint64(1 << 40),
	"byte": int8(-128), "short": int16(-1 << 15),
	"int-small": int32(-1), "int": int32(-1 << 31), "long-small": int64(-1), "long": int64(-1 << 40),
	"float": float32(0.5), "double": 3.25,
	"timestamp": time.UnixMilli(1_700_000_000_123).UTC(),
	"uuid":      amqp.UUID{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef},
	"binary":    []byte{0, 1, 255}, "string": "Zug \U0001f682", "string-long": strings.Repeat("x", 300),
	"symbol":       amqp.Symbol("amqp:accepted:list"),
	"list":         []any{uint8(1), "two", nil, []any{amqp.Symbol("three")}},
	"map":          map[string]any{"a": int64(1), "b": map[string]any{"c": amqp.Symbol("d")}},
	"array-of-int": []int32{1, -2, 3}, "array-of-symbol": []amqp.Symbol{"a", "b"},
}

// names are those of messages, in the order in which they are sent.
func names(messages map[string]*amqp.Message) []string {
	found := []string{}
	for name := range messages {
		found = append(found, name)
	}
	sort.Strings(found)
	return found
}

// messages has every type in every place, and every property.
func messages() map[string]*amqp.Message {
	made := map[string]*amqp.Message{}
	for name, content := range values {
		made["body-"+name] = value(content)
		annotated := value(name)
		annotated.Annotations = amqp.Annotations{"x-opt-" + name: content}
		made["annotation-"+name] = annotated
		if kind := reflect.TypeOf(content).Kind(); kind != reflect.Map && kind != reflect.Slice || name == "binary" {
			carrier := value(name)
			carrier.ApplicationProperties = map[string]any{name: content}
			made["application-property-"+name] = carrier
		}
	}
	text := func(content string) *string { return &content }
	sequence, expiry, created := uint32(5), time.UnixMilli(4_102_444_800_000).UTC(), time.UnixMilli(1_700_000_000_125).UTC()
	made["properties"] = &amqp.Message{
		Header: &amqp.MessageHeader{Durable: true, Priority: 9},
		Properties: &amqp.MessageProperties{
			MessageID: "id-1", UserID: []byte("user"), To: text("to/here"), Subject: text("a subject"),
			ReplyTo: text("reply/here"), CorrelationID: uint64(7), ContentType: text("text/plain"),
			ContentEncoding: text("gzip"), AbsoluteExpiryTime: &expiry, CreationTime: &created, GroupID: text("group"),
			GroupSequence: &sequence, ReplyToGroupID: text("reply-group"),
		},
		Value: "properties",
	}
	made["data"] = &amqp.Message{Data: [][]byte{{1, 2}, {3}}}
	made["sequence"] = &amqp.Message{Sequence: [][]any{{int64(1), "two"}, {int64(3)}}}
	return made
}

// Sends every type, and gives what arrives otherwise than it was sent.
func types(scene *Scene) map[string]any {
	made := messages()
	outcomes := scene.sendAll(made)
	receiver := scene.receiver(&amqp.ReceiverOptions{Credit: 10})
	changed := map[string]string{}
	for _, name := range names(made) {
		came := scene.next(receiver)
		check(receiver.AcceptMessage(scene, came))
		if what := change(decoded(made[name]), came); what != "" {
			changed[name] = what
		}
	}
	return map[string]any{"outcomes": outcomes, "count": len(made), "changed": changed}
}

// decoded is a message as go-amqp reads it from its own bytes: a symbol as a string, a time in the local zone.
func decoded(message *amqp.Message) *amqp.Message {
	found := &amqp.Message{}
	check(found.UnmarshalBinary(must(message.MarshalBinary())))
	return found
}

// change is the difference in what an application sets, or "".
func change(sent, came *amqp.Message) string {
	pairs := [][2]any{
		{sent.Value, came.Value}, {sent.Data, came.Data}, {sent.Sequence, came.Sequence},
		{sent.ApplicationProperties, came.ApplicationProperties}, {sent.Properties, came.Properties},
	}
	for key, content := range sent.Annotations {
		pairs = append(pairs, [2]any{content, came.Annotations[key]})
	}
	if sent.Header != nil {
		pairs = append(pairs, [2]any{sent.Header, came.Header})
	}
	for _, pair := range pairs {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			return fmt.Sprintf("sent %#v, came %#v", pair[0], pair[1])
		}
	}
	return ""
}

func (scene *Scene) sendAll(made map[string]*amqp.Message) []string {
	ordered := []*amqp.Message{}
	for _, name := range names(made) {
		ordered = append(ordered, made[name])
	}
	return scene.send(scene.sender(nil), ordered...)
}

// Sends every type and leaves it in the queue; gives the names in order.
func sendTypes(scene *Scene) map[string]any {
	made := messages()
	scene.sendAll(made)
	return map[string]any{"names": names(made)}
}
