"""Find and delete the values of threads that no checkpoint names, in Postgres."""

from __future__ import annotations

GRACE_SECONDS = 1.0
"""How long values stay after the checkpoints that named them.

A run that has read a checkpoint before it was deleted stores the next one in a moment, by
`update_state` on an old checkpoint, say. That one names values of the old one, and no transaction
sees it that began before: who deletes the values looks again.
"""

# By thread, so that what is named is looked up in a small set. What a damaged checkpoint names
# nobody knows, so its thread keeps all.
_NAMED = """
    WITH named AS MATERIALIZED (
        SELECT DISTINCT c.thread_id, c.checkpoint_ns, v.key AS channel, v.value AS version
        FROM checkpoints AS c
        CROSS JOIN LATERAL jsonb_each_text(
            CASE jsonb_typeof(c.checkpoint -> 'channel_versions')
            WHEN 'object' THEN c.checkpoint -> 'channel_versions' END
        ) AS v
        WHERE c.thread_id = ANY(%(threads)s)
    ), damaged AS MATERIALIZED (
        SELECT DISTINCT c.thread_id FROM checkpoints AS c WHERE c.thread_id = ANY(%(threads)s)
        AND jsonb_typeof(c.checkpoint -> 'channel_versions') IS DISTINCT FROM 'object'
    )
    """
_UNNAMED = """
    FROM checkpoint_blobs AS b WHERE b.thread_id = ANY(%(threads)s) AND NOT EXISTS (
        SELECT FROM named AS n WHERE n.thread_id = b.thread_id
        AND n.checkpoint_ns = b.checkpoint_ns AND n.channel = b.channel AND n.version = b.version
    ) AND b.thread_id NOT IN (SELECT thread_id FROM damaged)
    """
LIST_UNNAMED = f"""{_NAMED}
    SELECT b.thread_id, b.checkpoint_ns, b.channel, b.version, pg_column_size(b.blob) {_UNNAMED}
    """
# Jobs note in it whose values they are to delete, and from when on; it may be another user's.
HAS_NOTES = """
    SELECT has_table_privilege(t, 'SELECT') AND has_table_privilege(t, 'UPDATE')
    FROM to_regclass('reducing_saver_freed') AS t
    """
POSTPONE = """
    UPDATE reducing_saver_freed SET due = extract(epoch FROM clock_timestamp()) + %s
    WHERE thread_id = %s
    """
_LISTED = """
    AND (b.checkpoint_ns, b.channel, b.version) IN (
        SELECT * FROM unnest(%(spaces)s::text[], %(channels)s::text[], %(versions)s::text[])
    )
    """
DELETE_UNNAMED = f"{_NAMED} DELETE {_UNNAMED}"
DELETE_STILL_UNNAMED = f"{_NAMED} DELETE {_UNNAMED} {_LISTED}"
