#!/bin/sh
# A job through the same names with nothing but curl: ./curl.sh JOB [URL of the gateway]
set -eu
job=$1
url=${2:-http://127.0.0.1:8080}

# 201 says that the audit queue and one of the processors' queues have it.
curl --silent --show-error --fail-with-body -H "Content-Type: text/plain" -d "$job" "$url/jobs"
for queue in audit processors/1 processors/2; do
    # 200 with the message, which is taken out of the queue; 204 where there is none.
    body=$(curl --silent --show-error --fail-with-body -X DELETE "$url/$queue/!head?timeout=1")
    echo "$queue: $body"
done
