"""/monitor of Apache's dashboard: limits of consumer groups, stored as two alert rules each. Apache stores and never checks them.

minCount      ─→ rule dashboard-clients-GROUP: fewer connected clients
maxDiffTotal  ─→ rule dashboard-lag-GROUP: a larger lag
"""

from __future__ import annotations

from ariane.console.alerts.alert_rules import (
    NAME_CHARACTERS_MAX,
    AlertCondition,
    AlertMetric,
    AlertRule,
)
from ariane.console.dashboard.formats.envelope import DashboardRouter
from ariane.console.dashboard.formats.json_shapes import Json
from ariane.console.dashboard.formats.request_parameters import Parameters
from ariane.console.limits.access import current_access
from ariane.console.services import ConsoleServices
from ariane.console.web.dependencies import Services
from ariane.errors import ConfigError
from ariane.model.topic import group_name_fault

routes = DashboardRouter("/monitor")

CLIENTS_RULE, LAG_RULE = "dashboard-clients-", "dashboard-lag-"


@routes.post("/createOrUpdateConsumerMonitor.do")
async def save_monitor(services: Services, parameters: Parameters) -> bool:
    """Create or replace the limits of a group."""
    group = parameters.text("consumeGroupName")
    if fault := group_name_fault(group):
        raise ConfigError("consumeGroupName", group, fault)
    min_count, max_lag = parameters.whole("minCount"), parameters.whole("maxDiffTotal")
    for prefix, name, metric, condition, threshold in (
        (CLIENTS_RULE, "Clients", AlertMetric.GROUP_CLIENTS, AlertCondition.BELOW, min_count),
        (LAG_RULE, "Lag", AlertMetric.GROUP_LAG, AlertCondition.ABOVE, max_lag),
    ):
        rule_name = f"{name} of {group}"[:NAME_CHARACTERS_MAX]
        rule = AlertRule(
            id=prefix + group, name=rule_name, metric=metric, condition=condition, pattern=group, threshold=threshold
        )
        services.alerts.save_rule(rule)
    return True


@routes.get("/consumerMonitorConfig.query")
async def monitors(services: Services) -> Json:
    """Return the limits of all groups that have some."""
    return _limits(services)


@routes.get("/consumerMonitorConfigByGroupName.query")
async def monitor(services: Services, parameters: Parameters) -> Json | None:
    """Return the limits of a group; null without."""
    limits: Json | None = _limits(services).get(parameters.text("consumeGroupName"))
    return limits


@routes.post("/deleteConsumerMonitor.do")
async def delete_monitor(services: Services, parameters: Parameters) -> bool:
    """Delete the limits of a group. A group without limits is ignored."""
    group = parameters.text("consumeGroupName")
    stored = {rule.id for rule in services.alerts.settings.rules}
    for rule_id in (CLIENTS_RULE + group, LAG_RULE + group):
        if rule_id in stored:
            services.alerts.delete_rule(rule_id)
    return True


def _limits(services: ConsoleServices) -> Json:
    access = current_access()
    rules = {rule.id: rule for rule in services.alerts.settings.rules if access.sees_group(rule.pattern)}
    limits: Json = {}
    for rule_id, rule in rules.items():
        lag_rule = rules.get(LAG_RULE + rule.pattern)
        # Each of the two may have been changed or deleted on the page of alerts.
        if rule_id == CLIENTS_RULE + rule.pattern and lag_rule is not None:
            limits[rule.pattern] = {"minCount": int(rule.threshold), "maxDiffTotal": int(lag_rule.threshold)}
    return limits
