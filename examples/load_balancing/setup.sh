#!/bin/sh
# Makes the names of this example: ./setup.sh [URL of the gateway]
#
#                    +--> audit                           every job, for the books
#   jobs (all) ------+
#                    +--> workers (one) --+--> processors/1     each job goes to
#                                         +--> processors/2     one of these two
set -eu
url=${1:-http://127.0.0.1:8080}

post() { # NAME JSON
    curl --silent --show-error --fail-with-body -H "Content-Type: application/json" -d "$2" "$url/$1"
    echo
}

post jobs '{"role": "router", "distribution": "all"}'
post workers '{"role": "router", "distribution": "one"}'
for queue in audit processors/1 processors/2; do
    post "$queue" '{"role": "queue"}'
done
post jobs/!subscriptions '{"target": "audit"}'
post jobs/!subscriptions '{"target": "workers"}'
post workers/!subscriptions '{"target": "processors/1"}'
post workers/!subscriptions '{"target": "processors/2"}'
