{{/* Names, labels and images. */}}

{{- define "lightrail.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* RELEASE-lightrail, or RELEASE if that contains lightrail; short enough for suffixes. */}}
{{- define "lightrail.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "lightrail.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "lightrail.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/*
Labels that selectors use: never change. Takes (dict "root" $ "component" NAME), and "shard" for the members of one
shard, its number as a text.
*/}}
{{- define "lightrail.selector" -}}
app.kubernetes.io/name: {{ include "lightrail.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .shard }}
lightrail/shard: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* The name of the objects of a role, and with "shard" of those of one shard. */}}
{{- define "lightrail.roleName" -}}
{{- printf "%s-%s" (include "lightrail.fullname" .root) .component -}}
{{- with .shard }}-{{ . }}{{ end -}}
{{- end -}}

{{/* Labels of every object. Takes (dict "root" $ "component" NAME). */}}
{{- define "lightrail.labels" -}}
{{ include "lightrail.selector" . }}
app.kubernetes.io/part-of: lightrail
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods: without versions, which would restart unchanged pods. Adds "values".podLabels. */}}
{{- define "lightrail.podLabels" -}}
{{ include "lightrail.selector" . }}
app.kubernetes.io/part-of: lightrail
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- with .values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* REGISTRY/REPOSITORY:TAG, or @DIGEST. Takes (dict "image" VALUES "tag" DEFAULT). */}}
{{- define "lightrail.image" -}}
{{- $name := .image.repository -}}
{{- with .image.registry -}}{{- $name = printf "%s/%s" . $name -}}{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .tag .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "lightrail.serviceAccountName" -}}
{{- if .root.Values.serviceAccounts.create -}}
{{- printf "%s-%s" (include "lightrail.fullname" .root) .account -}}
{{- else -}}
{{- default "default" .root.Values.serviceAccounts.name -}}
{{- end -}}
{{- end -}}

{{/* Names of the Secrets, made by the chart or by the user. */}}
{{- define "lightrail.usersSecret" -}}
{{- default (printf "%s-users" (include "lightrail.fullname" .)) .Values.users.existingSecret -}}
{{- end -}}
{{- define "lightrail.wireSecret" -}}
{{- default (printf "%s-wire" (include "lightrail.fullname" .)) .Values.wire.keySecret -}}
{{- end -}}
{{- define "lightrail.tlsSecret" -}}
{{- if eq .Values.tls.source "secret" -}}
{{- .Values.tls.secret -}}
{{- else -}}
{{- printf "%s-tls" (include "lightrail.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* Every name of the services inside the cluster, as JSON. */}}
{{- define "lightrail.serverNames" -}}
{{- $names := list "localhost" -}}
{{- range $service := list "amqp" "gateway" -}}
{{- $short := printf "%s-%s" (include "lightrail.fullname" $) $service -}}
{{- $names = concat $names (list $short (printf "%s.%s" $short $.Release.Namespace) (printf "%s.%s.svc" $short $.Release.Namespace) (printf "%s.%s.svc.%s" $short $.Release.Namespace $.Values.clusterDomain)) -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* Address of the gateway for the chart's Jobs. */}}
{{- define "lightrail.gatewayUrl" -}}
{{- $host := printf "%s-gateway.%s.svc" (include "lightrail.fullname" .) .Release.Namespace -}}
{{- if eq .Values.tls.source "none" -}}
{{- printf "http://%s:%d" $host (int .Values.gateway.service.httpPort) -}}
{{- else -}}
{{- printf "https://%s:%d" $host (int .Values.gateway.service.httpsPort) -}}
{{- end -}}
{{- end -}}
