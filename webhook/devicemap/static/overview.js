// All nodes at a glance: a cell for each device. The keys go from cell to cell, a cell leads to its node.
"use strict";

(() => {
  const html = htm.bind(preact.h);
  const { useLayoutEffect, useMemo, useRef, useState } = preactHooks;
  const { HEALTH, classes, heldOf, level, marked, number } = koordgate;
  const DENSE = 200; // nodes from which the cells are small
  const LINE = 8; // cells in a line, at most
  const LOOKS = { free: "free", parts: "in parts", full: "full", bad: "not usable" };

  // What one hears of a device, and reads of the one that is pointed at.
  function told(node, one) {
    const amounts = one.resources.map((resource, at) => `${resource.word} ${heldOf(one.amounts[at], resource.unit)}`);
    const state = one.look === "bad" ? (HEALTH[one.health] ?? HEALTH.unread).word : LOOKS[one.look];
    return `${one.name} of ${node.name}: ${[state, ...amounts].join(", ")}`;
  }

  function holders(node, one) {
    const [first, ...rest] = one.shares.map((share) => node.holders[share.holder].label);
    return first ? `, held by ${first}${rest.length ? ` and ${rest.length} more` : ""}` : "";
  }

  // A column for each resource, from below. What is free or full as a whole needs none: the style sheet is faster.
  function fills(one) {
    if (one.amounts.every((each) => level(each) === (one.look === "full" ? 100 : 0))) return {};
    const count = one.resources.length;
    const columns = one.amounts.map((each, at) => {
      const height = level(each);
      return `linear-gradient(to top, var(--fill) ${height}%, transparent ${height}%) ${count > 1 ? (100 * at) / (count - 1) : 0}% 0 / ${100 / count}% 100% no-repeat`;
    });
    return { background: ["var(--over)", ...columns, "var(--back)"].join(", ") };
  }

  // A node, drawn again only if it, its marks or its tab stop changed.
  class Tile extends preact.Component {
    shouldComponentUpdate(next) {
      return ["node", "short", "marks", "stop", "lit"].some((name) => next[name] !== this.props[name]);
    }

    render({ node, short, marks, stop, lit }) {
      const places = marks.split(" ");
      const free = (node.kinds[0]?.[1] ?? []).filter((one) => one.look === "free").length;
      const shut = node.blocked || node.undelivered;
      const cell = (at, props, text) => html`<span role="gridcell" data-at=${at} tabindex=${stop === at ? 0 : -1} ...${props}>${text}</span>`;
      return html`<div role="row" class=${classes("tile", shut && "away", lit && "lit")} data-node=${node.name}>
        <span role="rowheader" class="name" aria-label=${[node.name, free > 0 && `${free} free`, shut && "takes nothing new"].filter(Boolean).join(", ")}>
          ${shut && html`<b class="bad">✕</b>`}<span>${short}</span>${free > 0 && html`<span class="quiet">${free} free</span>`}
        </span>
        ${node.devices.length === 0 && cell(0, { class: "none" }, node.has || "no devices")}
        ${node.kinds.map(([type, devices]) => html`<span class="cells" role="none">
          <span class="kind" aria-hidden="true">${type}</span>
          ${devices.map((one) => cell(one.at, {
            class: classes("cell", one.look, places.includes(String(one.at)) && "lit"),
            style: fills(one),
            "aria-label": `${told(node, one)}${holders(node, one)}${places.includes(String(one.at)) ? ", marked" : ""}`,
          }))}
        </span>`)}
      </div>`;
    }
  }

  // How much of all names is the same at their beginning, up to a separator. `names` are in order.
  function common(names) {
    const [first, last] = [names[0] ?? "", names.at(-1) ?? ""];
    let at = 0;
    while (at < first.length && first[at] === last[at]) at++;
    return Math.max(first.lastIndexOf("-", at - 1), first.lastIndexOf(".", at - 1)) + 1;
  }

  // The nearest cell of the next line above (-1) or below (1).
  function beyond(from, cells, way) {
    const here = from.getBoundingClientRect();
    let best = null;
    for (const cell of cells) {
      const { left, top } = cell.getBoundingClientRect();
      const far = [way * (top - here.top), Math.abs(left - here.left)];
      if (far[0] > 1 && (!best || far[0] < best.far[0] - 1 || (far[0] < best.far[0] + 1 && far[1] < best.far[1]))) best = { cell, far };
    }
    return best?.cell;
  }

  const placeOf = (element) => {
    const name = element.closest("[data-node]")?.dataset.node;
    const at = element.closest("[data-at]")?.dataset.at;
    return name && { name, at: at === undefined ? null : Number(at) };
  };

  // The cell that is pointed at, or has the focus. `point` takes the function that says which: only this is drawn again.
  function Readout({ found, point }) {
    const [pointed, setPointed] = useState(null);
    point.current = setPointed;
    const node = pointed && found.nodes.find((one) => one.name === pointed.name);
    const one = node?.devices[pointed.at];
    const all = one ? one.shares.map((share) => node.holders[share.holder].label).join(", ") : "";
    return html`<p class="readout" aria-hidden="true">${one
      ? html`<b>${told(node, one)}</b> ${[one.why, all].filter(Boolean).join(" · ")}`
      : node ? html`<b>${node.name}</b> ${[node.blocked, node.undelivered, node.has].filter(Boolean).join(" · ")}`
      : html`<span class="quiet">Point at a device, or go from one to the next with the arrow keys. A click or Enter shows its node.</span>`}</p>`;
  }

  // `hidden`: a node is shown instead. `zoom` takes its place: {name, at}, in which `at` is null for the node itself.
  function Overview({ found, pods, hidden, zoom }) {
    const box = useRef();
    const point = useRef();
    const [stop, setStop] = useState(null);
    const { nodes } = found;
    const dense = nodes.length > DENSE;
    const same = useMemo(() => common(nodes.map((node) => node.name)), [nodes.length, nodes[0]?.name, nodes.at(-1)?.name]);
    const long = Math.max(0, ...nodes.map((node) => node.name.length)) > (dense ? 10 : 19) && same > 3;
    const line = Math.min(LINE, Math.max(4, ...nodes.flatMap((node) => node.kinds.map(([, devices]) => devices.length))));
    const labels = nodes.some((node) => node.kinds.length > 1);
    const at = Math.max(0, nodes.findIndex((node) => node.name === stop?.name));
    const current = nodes[at]?.name === stop?.name && stop.at < nodes[at].devices.length ? Number(stop.at) : 0;
    const go = (to) => (setStop(to), zoom(to));

    const tile = (which) => box.current.querySelector(`[data-node="${CSS.escape(nodes[which]?.name ?? "")}"]`);
    const cells = (which) => [...(tile(which)?.querySelectorAll("[data-at]") ?? [])];
    const focus = (cell, block = "nearest") => {
      cell?.focus({ preventScroll: true });
      cell?.scrollIntoView({ block });
    };
    useLayoutEffect(() => {
      const back = stop && !hidden && document.activeElement === document.body; // from a node, and not by typing
      if (back) focus(cells(at)[current], "center");
    }, [hidden]);

    const press = (event) => {
      const cell = event.target.closest("[data-at]");
      if (!cell || event.altKey || event.metaKey) return;
      const columns = getComputedStyle(box.current).gridTemplateColumns.split(" ").length;
      const page = columns * Math.max(1, Math.floor(innerHeight / tile(at).offsetHeight) - 1);
      const own = cells(at);
      const inLine = own.indexOf(cell);
      const row = (way) => beyond(cell, [...own, ...cells(at + way * columns)], way);
      const far = (way) => cells(Math.max(at % columns, Math.min(nodes.length - 1, at + way * page)));
      const keys = {
        ArrowRight: () => own[inLine + 1] ?? cells(at + 1)[0],
        ArrowLeft: () => own[inLine - 1] ?? cells(at - 1).at(-1),
        ArrowDown: () => row(1),
        ArrowUp: () => row(-1),
        PageDown: () => far(1)[inLine] ?? far(1)[0],
        PageUp: () => far(-1)[inLine] ?? far(-1)[0],
        Home: () => (event.ctrlKey ? cells(0) : own)[0],
        End: () => (event.ctrlKey ? cells(nodes.length - 1) : own).at(-1),
        Enter: () => go(placeOf(cell)),
        " ": () => go(placeOf(cell)),
      };
      if (!(event.key in keys)) return;
      event.preventDefault();
      focus(keys[event.key]());
    };

    const counts = { free: 0, parts: 0, full: 0, bad: 0 };
    for (const node of nodes) for (const one of node.devices) counts[one.look] += 1;
    return html`<div hidden=${hidden}>
      <ul class="legend" aria-label="Devices by state">
        ${Object.entries(LOOKS).map(([look, word]) => html`<li><i class=${`cell ${look}`} aria-hidden="true"></i>${word} <b>${number(counts[look])}</b></li>`)}
        <li class="quiet">A column for each resource, as core and memory.</li>
      </ul>
      <div class=${classes("overview", dense && "dense", labels && "kinds")} style=${{ "--columns": line }} role="grid" aria-label="Devices of all nodes" ref=${box}
        onKeyDown=${press}
        onFocusIn=${(event) => (setStop(placeOf(event.target)), point.current(placeOf(event.target)))}
        onClick=${(event) => placeOf(event.target) && go(placeOf(event.target))}
        onMouseOver=${(event) => point.current(placeOf(event.target) ?? null)}
        onMouseLeave=${() => point.current(null)}>
        ${nodes.map((node, place) => html`<${Tile} key=${node.name} node=${node} short=${long ? `…${node.name.slice(same)}` : node.name}
          marks=${marked(node, pods.lit, found).join(" ")} stop=${place === at ? current : -1}
          lit=${Boolean(pods.lit) && node.holders.some((one) => one.key === pods.lit)} />`)}
      </div>
      <${Readout} found=${found} point=${point} />
    </div>`;
  }

  Object.assign(koordgate, { Overview });
})();
