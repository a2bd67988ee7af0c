"""How the devices of one node are connected, and which set of them serves an ask best.

`links` measures connections, `sets` chooses devices of one type, `partitions` reads the tables of a switched fabric,
`joint` adds devices of a second type.
"""
