// Conversations of go-amqp with a broker: amqp HOST:PORT TLS-HOST:PORT PREFIX NAME... prints a line of JSON for each
// scenario of that name. The broker has a user alice who may do everything, and bob who may use what is below bob.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/Azure/go-amqp"
)

const timeout = 30 * time.Second

// Scene is what a scenario works with: nodes whose names start with `name` are its own.
type Scene struct {
	context.Context
	address, secure, name string
	session               *amqp.Session
}

type scenario func(*Scene) map[string]any

var scenarios = map[string]scenario{
	"order": order, "types": types, "send_types": sendTypes, "large": large, "outcomes": outcomes, "loss": loss,
	"presettled": presettled, "second": second, "credit": credit, "browse": browse, "select": selects,
	"request": request, "enter": enter, "detached": detached, "closing": closing,
	"closing_tls": closingOverTLS,
}

// check ends a scenario whose call fails.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// why is the condition of an error that the broker gave, or what the client says of another one.
func why(err error) string {
	var link *amqp.LinkError
	var session *amqp.SessionError
	var connection *amqp.ConnError
	var plain *amqp.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &link) && link.RemoteErr != nil:
		return string(link.RemoteErr.Condition)
	case errors.As(err, &session) && session.RemoteErr != nil:
		return string(session.RemoteErr.Condition)
	case errors.As(err, &connection) && connection.RemoteErr != nil:
		return string(connection.RemoteErr.Condition)
	case errors.As(err, &plain):
		return string(plain.Condition)
	default:
		return "without a condition: " + err.Error()
	}
}

func user(name, password string) *amqp.ConnOptions {
	return &amqp.ConnOptions{SASLType: amqp.SASLTypePlain(name, password)}
}

// connect gives a session of a connection of its own.
func (scene *Scene) connect(options *amqp.ConnOptions) (*amqp.Conn, *amqp.Session) {
	return scene.connectTo("amqp://"+scene.address, options)
}

func (scene *Scene) connectTo(url string, options *amqp.ConnOptions) (*amqp.Conn, *amqp.Session) {
	connection := must(amqp.Dial(scene, url, options))
	return connection, must(connection.NewSession(scene, nil))
}

func (scene *Scene) sender(options *amqp.SenderOptions) *amqp.Sender {
	return must(scene.session.NewSender(scene, scene.name, options))
}

func (scene *Scene) receiver(options *amqp.ReceiverOptions) *amqp.Receiver {
	return must(scene.session.NewReceiver(scene, scene.name, options))
}

func value(content any) *amqp.Message { return &amqp.Message{Value: content} }

// send sends messages without waiting between them, and gives the kinds of their outcomes, each once.
func (scene *Scene) send(sender *amqp.Sender, messages ...*amqp.Message) []string {
	receipts := []amqp.SendReceipt{}
	for _, message := range messages {
		receipts = append(receipts, must(sender.SendWithReceipt(scene, message, nil)))
	}
	kinds := []string{}
	seen := map[string]bool{}
	for index := range receipts {
		kind := fmt.Sprintf("%T", must(receipts[index].Wait(scene)))
		if !seen[kind] {
			seen[kind] = true
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

func (scene *Scene) sendNumbers(count int, durable bool) []string {
	messages := []*amqp.Message{}
	for number := range count {
		message := value(int64(number))
		message.Header = &amqp.MessageHeader{Durable: durable, Priority: 4}
		messages = append(messages, message)
	}
	return scene.send(scene.sender(nil), messages...)
}

// next is the next message, not settled yet.
func (scene *Scene) next(receiver *amqp.Receiver) *amqp.Message {
	return must(receiver.Receive(scene, nil))
}

// take accepts so many messages, and gives their bodies.
func (scene *Scene) take(receiver *amqp.Receiver, count int) []any {
	bodies := []any{}
	for len(bodies) < count {
		message := scene.next(receiver)
		check(receiver.AcceptMessage(scene, message))
		bodies = append(bodies, message.Value)
	}
	return bodies
}

// run gives what a scenario found, or why it did not end well.
func run(scene *Scene, work scenario) (found map[string]any) {
	defer func() {
		if failure := recover(); failure != nil {
			found = map[string]any{"failed": fmt.Sprint(failure)}
		}
	}()
	var cancel context.CancelFunc
	scene.Context, cancel = context.WithTimeout(context.Background(), timeout)
	defer cancel()
	connection, session := scene.connect(user("alice", "secret"))
	scene.session = session
	found = work(scene)
	check(connection.Close())
	return found
}

func main() {
	lines := json.NewEncoder(os.Stdout)
	for _, name := range os.Args[4:] {
		scene := &Scene{address: os.Args[1], secure: os.Args[2], name: os.Args[3] + name}
		found := map[string]any{"failed": "there is no scenario of this name"}
		if work := scenarios[name]; work != nil {
			found = run(scene, work)
		}
		check(lines.Encode(map[string]any{"scenario": name, "found": found}))
	}
}
