"""Who is asked: the shipped reader, models of transformers, OpenAI-compatible servers, and functions of one's own."""

from mrope.probes.spatial.respondents.blind import Blind
from mrope.probes.spatial.respondents.called import CallableRespondent
from mrope.probes.spatial.respondents.named import respondent
from mrope.probes.spatial.respondents.reader import ReaderRespondent
from mrope.probes.spatial.respondents.server import ServerRespondent
from mrope.probes.spatial.respondents.transformer import TransformersRespondent

__all__ = [
    "Blind",
    "CallableRespondent",
    "ReaderRespondent",
    "ServerRespondent",
    "TransformersRespondent",
    "respondent",
]
