"""Play recordings through a real LangGraph agent, whose model and tools give what they hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool
from langsmith import tracing_context
from pydantic import BaseModel

from .turns import Asked, Recording

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

NO_RESULT = "No result was recorded for this call."


def play(
    recordings: Iterable[Recording], saver: BaseCheckpointSaver[Any], tick: Callable[[], None]
) -> None:
    """Play each recording as one thread of a saver; `tick` is called after each turn."""
    with tracing_context(enabled=False):  # whatever the environment says: no network
        for played in recordings:
            script: deque[AIMessage] = deque()
            graph = _agent(script, played.tools or _recorded_tools(played.asked), saver)
            for turn in played.turns:
                # Copies, since LangChain gives ids to what has none.
                script.extend(reply.model_copy() for reply in turn.replies)
                inputs = [message.model_copy() for message in turn.inputs]
                config = thread_config(played.id)
                config["recursion_limit"] = 2 * len(turn.replies) + 10
                graph.invoke({"messages": inputs}, config)
                tick()


def thread_config(thread: str) -> RunnableConfig:
    """Return the config that names a thread."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def _agent(
    script: deque[AIMessage], tools: Iterable[BaseTool], saver: BaseCheckpointSaver[Any]
) -> CompiledStateGraph[Any, Any, Any, Any]:
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    model = GenericFakeChatModel(messages=iter(script.popleft, None))

    def agent(state: Any) -> dict[str, list[BaseMessage]]:
        return {"messages": [model.invoke(state["messages"])]}

    def route(state: Any) -> str:
        last = state["messages"][-1] if state["messages"] else None
        if isinstance(last, AIMessage) and last.tool_calls:
            return "tools"
        return "agent" if script else END

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode(list(tools)))
    for node in (START, "agent", "tools"):
        builder.add_conditional_edges(node, route, ["agent", "tools", END])
    return builder.compile(checkpointer=saver)


class _OnlyId(BaseModel):
    # Whatever the recorded arguments are called, they are not needed, and cannot clash.
    tool_call_id: Annotated[str, InjectedToolCallId]


def _recorded_tools(asked: Iterable[Asked]) -> list[BaseTool]:
    answers: dict[str, dict[str, deque[ToolMessage | None]]] = {}
    for call in asked:
        answers.setdefault(call.name, {}).setdefault(call.id, deque()).append(call.result)
    return [_recorded_tool(name, by_id) for name, by_id in answers.items()]


def _recorded_tool(name: str, answers: dict[str, deque[ToolMessage | None]]) -> BaseTool:
    def answer(tool_call_id: str) -> ToolMessage:
        result = answers[tool_call_id].popleft()
        if result is None:
            return ToolMessage(NO_RESULT, tool_call_id=tool_call_id, name=name, status="error")
        return result.model_copy(update={"tool_call_id": tool_call_id, "name": name})

    return StructuredTool.from_function(
        answer, name=name, description="Give the recorded result.", args_schema=_OnlyId
    )
