"""`mqadmin` on access control: Java's tool and ours on the same cluster, and every change by its effect.

The servers accept requests from this machine without an account, so that neither tool signs: `updateAclConfig` and its
neighbours have the options of an account under the names with which other commands sign.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mqadmin_differential import CLUSTERS, Mask, ServerAddresses, run_both, run_json, run_ours

from ariane.testing import LocalCluster, java

FILE = """
globalWhiteRemoteAddresses: [127.0.0.1]
accounts:
- {accessKey: administrator, secretKey: an-admin-secret, admin: true}
"""
HASH = Mask(
    r"org\.apache\.rocketmq\.common\.PlainAccessConfig@[0-9a-f]+|account's accesskey is:[\w-]+", "object in Java"
)
SECRET = Mask(r"secretKey +: \S+", "masked key")
CHANGED = Mask(r"(\d+) +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d *", "number and time of changes")


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerAddresses]:
    home = tmp_path_factory.mktemp(request.param)
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(FILE)
    if request.param == "ariane":
        with LocalCluster(home, acl_enable=True, rocketmq_home=str(home)) as servers:
            yield ServerAddresses(servers.namesrv, servers.broker.addr)
        return
    with (
        java.name_server(home / "ns") as names,
        java.broker(home, names.addr, properties={"aclEnable": "true"}) as broker,
    ):
        yield ServerAddresses(names.addr, broker.addr)


def accounts(namesrv: str, addr: str) -> dict[str, dict[str, object]]:
    (shown,) = run_json(namesrv, f"getAclConfig -b {addr}")
    return {account["accessKey"]: account for account in shown["config"]["plainAccessConfigs"]}


def test_accounts_are_created_printed_and_deleted_alike(cluster: ServerAddresses) -> None:
    namesrv, addr = cluster
    created, version, shown, of_cluster = run_both(
        namesrv,
        f"updateAclConfig -b {addr} -a new-account -s new-secret -t T=PUB,U=DENY -g G=SUB -i DENY -u SUB -w 10.0.0.*",
        f"clusterAclConfigVersion -b {addr}",
        f"getAclConfig -b {addr}",
        "getAclConfig -c DefaultCluster",
    )
    created.assert_equal((HASH,))
    version.assert_equal((CHANGED,))
    # Java's tool prints the keys that Java's broker returns; ours masks them.
    shown.assert_equal((SECRET,))
    of_cluster.assert_equal((SECRET,))
    assert "-secret" not in shown.ours + of_cluster.ours
    account = accounts(namesrv, addr)["new-account"]
    assert (account["topicPerms"], account["defaultGroupPerm"]) == (["T=PUB", "U=DENY"], "SUB")
    planned = run_ours(namesrv, f"deleteAclConfig -b {addr} -a new-account --dry-run")
    assert planned.output == f"would delete account new-account on {addr}\n"
    deleted = run_ours(namesrv, f"deleteAclConfig -b {addr} -a new-account")
    assert deleted.output == (
        f"delete plain access config account from {addr} success.\naccount's accesskey is:new-account"
    )
    assert set(accounts(namesrv, addr)) == {"administrator"}


def test_versions_of_a_cluster_are_printed_alike(cluster: ServerAddresses) -> None:
    (listed,) = run_both(cluster.namesrv, "clusterAclConfigVersion -c DefaultCluster")
    listed.assert_equal((CHANGED,))
    assert "get cluster's plain access config version success." in listed.ours


def test_global_addresses_are_replaced_alike(cluster: ServerAddresses) -> None:
    namesrv, addr = cluster
    (replaced,) = run_both(namesrv, "updateGlobalWhiteAddr -c DefaultCluster -g 127.0.0.1,10.9.8.7")
    replaced.assert_equal()
    (shown,) = run_json(namesrv, f"getAclConfig -b {addr}")
    assert shown["config"]["globalWhiteAddrs"] == ["127.0.0.1", "10.9.8.7"]


def test_a_rejected_account_names_the_broker_and_the_reason(cluster: ServerAddresses) -> None:
    ours = run_ours(cluster.namesrv, f"updateAclConfig -b {cluster.broker} -a x -s y")
    assert ours.status == 1
    assert cluster.broker in ours.error
