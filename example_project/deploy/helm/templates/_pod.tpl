{{- define "pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  seccompProfile: {type: RuntimeDefault}
volumes:
  # Pending tasks are in PostgreSQL; these have nothing that must outlive a pod.
  - {name: run, emptyDir: {}}
  - {name: tmp, emptyDir: {}}
{{- end }}

{{- define "container" -}}
image: {{ .Values.image }}
envFrom:
  - secretRef: {name: {{ .Values.secret }}}
resources: {{ toYaml .Values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: run, mountPath: {{ .Values.folder }}}
  - {name: tmp, mountPath: /tmp}
{{- end }}
