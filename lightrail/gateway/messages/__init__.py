"""Messages of requests over HTTP: bodies of requests and answers, sending to names, and waiting at queues."""
