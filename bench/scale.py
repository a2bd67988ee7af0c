"""Filter and score of one Pod, from 1,000 to 20,000 nodes of 8 GPUs, half full: cold, warm, and one node changed.

`--plot FILE` draws the figures as SVG. The limit is that of 5,000 nodes (1 ms), scaled to the number of nodes.
"""

import argparse
import statistics
import sys
from pathlib import Path

from packed_cluster import Cluster
from result import close

from allocator.vocabulary.preference import Preference

NODES = (1000, 2000, 5000, 10000, 15000, 20000)
SERIES = {"cold": "#c0392b", "one node changed": "#2c6fbb", "warm": "#27804a"}
LIMIT_MS = 4.0
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 420, 64, 52, 40, 24
TICKS = 5

Figures = dict[str, list[float]]


def measure(nodes: int, rounds: int) -> dict[str, float]:
    """Median milliseconds: cold, warm, and after one node changed, with the preference packing."""
    cluster = Cluster(nodes)
    taken: Figures = {series: [] for series in SERIES}
    for number in range(rounds):
        query, body = cluster.query(number, Preference.PACKING), cluster.body()
        cluster.rewrite()
        taken["cold"].append(cluster.answer_ms(body, query, Preference.PACKING))
        taken["warm"].append(cluster.answer_ms(body, query, Preference.PACKING))
        cluster.rewrite_one(number)
        taken["one node changed"].append(cluster.answer_ms(body, query, Preference.PACKING))
    return {series: statistics.median(each) for series, each in taken.items()}


def plot(figures: Figures) -> str:
    """Draw the figures as an SVG."""
    most = max(max(each) for each in figures.values()) * 1.1

    def x(nodes: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * nodes / NODES[-1]

    def y(taken: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * taken / most

    def text(at: tuple[float, float], what: str, anchor: str = "middle", colour: str = "#333") -> str:
        return f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" fill="{colour}">{what}</text>'

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        text((WIDTH / 2, 22), "Filter and score of one Pod, nodes of 8 GPUs half full"),
        text((WIDTH / 2, HEIGHT - 12), "nodes"),
        text((LEFT, TOP - 8), "ms", "end"),
    ]
    for tick in range(TICKS + 1):
        taken = most * tick / TICKS
        drawn.append(f'<path d="M{LEFT} {y(taken):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        drawn.append(text((LEFT - 8, y(taken) + 4), f"{taken:.2f}", "end"))
    drawn += [text((x(nodes), HEIGHT - BOTTOM + 18), f"{nodes:,}") for nodes in NODES]
    for line, (series, each) in enumerate(figures.items()):
        colour = SERIES[series]
        points = " ".join(f"{x(nodes):.1f},{y(taken):.1f}" for nodes, taken in zip(NODES, each, strict=True))
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn.append(text((LEFT + 12, TOP + 16 + 18 * line), series, "start", colour))
    return "\n".join([*drawn, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures into this file as SVG")
    arguments = parser.parse_args()
    figures: Figures = {series: [] for series in SERIES}
    print(f"{'nodes':>6} " + " ".join(f"{series + ' (ms)':>22}" for series in SERIES), file=sys.stderr)
    for nodes in NODES:
        for series, taken in measure(nodes, arguments.rounds).items():
            figures[series].append(taken)
        told = " ".join(f"{each[-1]:>22.3f}" for each in figures.values())
        print(f"{nodes:>6} {told}", file=sys.stderr, flush=True)
    if arguments.plot:
        arguments.plot.write_text(plot(figures))
    value = figures["cold"][-1]
    close(name="scale", value=value, unit="ms", reference=LIMIT_MS, goal=1.0, higher_is_better=False)


if __name__ == "__main__":
    main()
