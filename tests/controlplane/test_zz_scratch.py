import time
from controlplane.test_matching import *  # noqa
from controlplane.test_matching import down, refused, saying, asking

def big_annotations(n, width):
    return {f"{i:0{width}x}": "" for i in range(n)}

async def test_limits(down, admin):
    for n in (1000, 10000, 20000, 40000, 60000):
        t=time.time()
        made = saying(annotations=big_annotations(n, 4))
        try:
            await admin.create(pods_path("down"), made, dryRun="All"); out="created"
        except ApiError as e: out=e.message[:300]
        print("annotations", n, out, round(time.time()-t,3))
    for containers, res in ((100,5),(500,10),(1000,10),(2000,10),(4000,8),(1,20000)):
        t=time.time()
        names={f"e.co/{i:x}":"1" for i in range(res)}
        cs=[{"name":f"c{i}","image":"none","resources":{"requests":names,"limits":names}} for i in range(containers)]
        made=pod("big","down",{}); made["spec"]["containers"]=cs
        try:
            await admin.create(pods_path("down"), made, dryRun="All"); out="created"
        except ApiError as e: out=e.message[:300]
        except Exception as e: out=repr(e)[:200]
        print("containers", containers, res, out, round(time.time()-t,3))
