{{/* Jobs on Spark: common parts of their pods. */}}

{{- define "lightrail.lakeTable" -}}
{{- default "/lake/messages" .Values.analytics.lake.table -}}
{{- end -}}

{{/* A shell script that configures the gateway's authority, followed by the given text. */}}
{{- define "lightrail.sparkShell" -}}
set -eu
if [ -s /etc/lightrail/authority/ca.crt ]; then
  export LIGHTRAIL_CA=/etc/lightrail/authority/ca.crt
fi
{{- end -}}

{{- define "lightrail.sparkContainer" -}}
name: {{ .name }}
image: {{ include "lightrail.image" (dict "image" .root.Values.analytics.image "tag" .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .root.Values.analytics.image.pullPolicy }}
resources:
  {{- toYaml .values.resources | nindent 2 }}
securityContext:
  {{- include "lightrail.containerSecurity" . | nindent 2 }}
command: [tini, --, sh, -c]
args:
  - |
    {{- include "lightrail.sparkShell" . | nindent 4 }}
    {{- .script | nindent 4 }}
env:
  - name: LIGHTRAIL_USER
    value: {{ .root.Values.users.operator | quote }}
  - name: LIGHTRAIL_PASSWORD_FILE
    value: /etc/lightrail/operator/password
  - name: SPARK_LOCAL_DIRS
    value: /scratch
  - name: PYSPARK_SUBMIT_ARGS
    value: {{ printf "--driver-memory %s pyspark-shell" .values.memory | quote }}
  {{- with .values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumeMounts:
  {{- include "lightrail.operatorMounts" .root | nindent 2 }}
  - name: lake
    mountPath: /lake
  - name: scratch
    mountPath: /scratch
{{- end -}}

{{/* What operates the gateway, and the lake. A volume of its own for each run where the table is elsewhere. */}}
{{- define "lightrail.sparkVolumes" -}}
- name: lake
{{- if .Values.analytics.lake.persistence.enabled }}
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-lake" (include "lightrail.fullname" .)) .Values.analytics.lake.persistence.existingClaim }}
{{- else }}
  emptyDir: {}
{{- end }}
- name: scratch
  emptyDir: {sizeLimit: {{ .Values.analytics.scratchSize }}}
{{ include "lightrail.operatorVolumes" . }}
{{- end -}}

{{/*
A CronJob. Takes (dict "root" $ "name" NAME "values" .Values.analytics "schedule" CRON "init" CONTAINERS "containers"
CONTAINERS "volumes" MORE), the containers and volumes as YAML; "init" and "volumes" may be missing.
*/}}
{{- define "lightrail.sparkCron" -}}
{{- $role := dict "root" .root "component" "analytics" "values" .values "restart" "Never" -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{ include "lightrail.fullname" .root }}-{{ .name }}
  labels:
    {{- include "lightrail.labels" $role | nindent 4 }}
spec:
  schedule: {{ .schedule | quote }}
  # Runs do not overlap: both would write the same rows.
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 600
  successfulJobsHistoryLimit: 1
  failedJobsHistoryLimit: 3
  jobTemplate:
    spec:
      backoffLimit: 2
      activeDeadlineSeconds: {{ int .values.timeoutSeconds }}
      ttlSecondsAfterFinished: 86400
      template:
        metadata:
          labels:
            {{- include "lightrail.podLabels" $role | nindent 12 }}
          {{- with .values.podAnnotations }}
          annotations:
            {{- toYaml . | nindent 12 }}
          {{- end }}
        spec:
          {{- include "lightrail.jobPod" $role | nindent 10 }}
          {{- with .init }}
          initContainers:
            - {{ . | indent 14 | trim }}
          {{- end }}
          containers:
            - {{ .containers | indent 14 | trim }}
          volumes:
            {{- include "lightrail.sparkVolumes" .root | nindent 12 }}
            {{- with .volumes }}
            {{- . | nindent 12 }}
            {{- end }}
{{- end -}}
