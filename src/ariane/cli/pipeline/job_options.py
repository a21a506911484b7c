"""Options that say which topics the jobs of the pipeline read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ariane.cli.options.option_kinds import topic_option
from ariane.model.topic import SAMPLES_TOPIC, TRACE_TOPIC

if TYPE_CHECKING:
    from ariane.pipeline.jobs import PipelineJob


@dataclass(frozen=True, kw_only=True)
class TopicOptions:
    """The values of the options."""

    topic: Annotated[str, topic_option(help="Topic of message traces.")] = TRACE_TOPIC
    samples_topic: Annotated[str, topic_option(help="Topic of the samples of `ariane collect`.")] = SAMPLES_TOPIC

    def job(self, names: tuple[str, ...]) -> PipelineJob:
        """Return the jobs with these names, as one that reads these topics."""
        from ariane.pipeline import jobs

        return jobs.with_topics(jobs.combine_jobs(names), self.topic, self.samples_topic)
