#!/bin/sh
# Users of RabbitMQ with few rights: docs/roles.md says what each may do. Names: the queue "celery", the namespace "wheel".
# The arguments of set_permissions are what a user may configure, write and read.
set -e
for role in producer worker scheduler; do rabbitmqctl add_user "$role" "$role-secret"; done
rabbitmqctl set_permissions producer '^(wheel\.[0-9]+|celery|(.+\.reply|reply)\.celery\.pidbox|celery\.pidbox)$' '^(amq\.default|celery|(.+\.reply|reply)\.celery\.pidbox|celery\.pidbox)$' '^(celery|(.+\.reply|reply)\.celery\.pidbox)$'
rabbitmqctl set_permissions worker '^(wheel\.[0-9]+|celery|.*celery\.pidbox|celeryev.*)$' '^(amq\.default|celery|.*celery\.pidbox|celeryev.*)$' '^(celery|.*celery\.pidbox|celeryev.*)$'
rabbitmqctl set_permissions scheduler '^(wheel\..+|celery|.*celery\.pidbox|celeryev.*)$' '^(amq\.default|wheel\..+|celery|.*celery\.pidbox|celeryev.*)$' '^(wheel\..+|.*celery\.pidbox)$'
