{{/*
Secrets that the chart makes: once, and then found again in the cluster. Each helper gives the data of the Secret
(base64, as YAML) and remembers it, so that the Secret and the checksums of the pods see the same.
*/}}

{{- define "lightrail.remembered" -}}
{{- if not (hasKey .Values "made") }}{{ $_ := set .Values "made" dict }}{{ end -}}
{{- end -}}

{{- define "lightrail.usersData" -}}
{{- include "lightrail.remembered" . -}}
{{- if not (hasKey .Values.made "users") -}}
{{- $known := (lookup "v1" "Secret" .Release.Namespace (include "lightrail.usersSecret" .)).data | default dict -}}
{{- $data := dict -}}
{{- range .Values.users.create -}}
{{- $_ := set $data .name (index $known .name | default (randAlphaNum 32 | b64enc)) -}}
{{- end -}}
{{- $_ := set .Values.made "users" (toYaml $data) -}}
{{- end -}}
{{- .Values.made.users -}}
{{- end -}}

{{- define "lightrail.wireData" -}}
{{- include "lightrail.remembered" . -}}
{{- if not (hasKey .Values.made "wire") -}}
{{- $known := (lookup "v1" "Secret" .Release.Namespace (include "lightrail.wireSecret" .)).data | default dict -}}
{{- $key := index $known "wire.key" -}}
{{- if not $key -}}
{{- $key = printf "lightrail-wire-key 1\n%s\n" (include "lightrail.newWireKey" .) | b64enc -}}
{{- end -}}
{{- $_ := set .Values.made "wire" (toYaml (dict "wire.key" $key)) -}}
{{- end -}}
{{- .Values.made.wire -}}
{{- end -}}

{{/*
The secret half of a CURVE key, from which the processes get the public one: 32 random bytes in Z85 (ZeroMQ RFC 32),
four bytes to five digits of base 85.
*/}}
{{- define "lightrail.newWireKey" -}}
{{- $digits := "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#" -}}
{{- $hex := printf "%x" (randBytes 32 | b64dec) -}}
{{- range $chunk := until 8 -}}
{{- $value := int64 (printf "0x%s" (substr (int (mul 8 $chunk)) (int (add 8 (mul 8 $chunk))) $hex)) -}}
{{- range $power := list 52200625 614125 7225 85 1 -}}
{{- $digit := int (mod (div $value $power) 85) -}}
{{- substr $digit (int (add1 $digit)) $digits -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "lightrail.tlsData" -}}
{{- include "lightrail.remembered" . -}}
{{- if not (hasKey .Values.made "tls") -}}
{{- $data := (lookup "v1" "Secret" .Release.Namespace (include "lightrail.tlsSecret" .)).data | default dict -}}
{{- if not (index $data "tls.crt") -}}
{{- $days := int .Values.tls.days -}}
{{- $addresses := list "127.0.0.1" -}}
{{- $names := include "lightrail.serverNames" . | fromJsonArray -}}
{{- range .Values.tls.names -}}
{{- if regexMatch "^[0-9.]+$|:" . }}{{ $addresses = append $addresses . }}{{ else }}{{ $names = append $names . }}{{ end -}}
{{- end -}}
{{- $authority := genCA (printf "%s authority" (include "lightrail.fullname" .)) $days -}}
{{- $certificate := genSignedCert (include "lightrail.fullname" .) $addresses $names $days $authority -}}
{{- $data = dict "ca.crt" (b64enc $authority.Cert) "tls.crt" (b64enc $certificate.Cert) "tls.key" (b64enc $certificate.Key) -}}
{{- end -}}
{{- $_ := set .Values.made "tls" (toYaml $data) -}}
{{- end -}}
{{- .Values.made.tls -}}
{{- end -}}

{{/* Data of an existing Secret, or its name if the cluster can't be queried. */}}
{{- define "lightrail.foreignData" -}}
{{- (lookup "v1" "Secret" .root.Release.Namespace .name).data | default .name | toYaml -}}
{{- end -}}

{{/* checksum/... annotations: a pod is replaced when a Secret or ConfigMap that it reads at its start has changed. */}}
{{- define "lightrail.checksums" -}}
checksum/config: {{ include "lightrail.toml" . | sha256sum }}
{{- if .Values.wire.encrypted }}
{{- if .Values.wire.keySecret }}
checksum/wire: {{ include "lightrail.foreignData" (dict "root" . "name" .Values.wire.keySecret) | sha256sum }}
{{- else }}
checksum/wire: {{ include "lightrail.wireData" . | sha256sum }}
{{- end }}
{{- end }}
{{- if eq .Values.tls.source "generated" }}
checksum/tls: {{ include "lightrail.tlsData" . | sha256sum }}
{{- else if eq .Values.tls.source "secret" }}
checksum/tls: {{ include "lightrail.foreignData" (dict "root" . "name" .Values.tls.secret) | sha256sum }}
{{- end }}
{{- with .Values.tls.clientCaSecret }}
checksum/client-ca: {{ include "lightrail.foreignData" (dict "root" $ "name" .) | sha256sum }}
{{- end }}
{{- if not .Values.etcd.enabled }}
{{- with .Values.etcd.external.tls.secret }}
checksum/etcd-tls: {{ include "lightrail.foreignData" (dict "root" $ "name" .) | sha256sum }}
{{- end }}
{{- with .Values.etcd.external.passwordSecret }}
checksum/etcd-password: {{ include "lightrail.foreignData" (dict "root" $ "name" .) | sha256sum }}
{{- end }}
{{- end }}
{{- end -}}
