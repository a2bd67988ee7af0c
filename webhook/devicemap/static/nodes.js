// The list of nodes. Only those in sight are in the document, however many there are.
"use strict";

(() => {
  const html = htm.bind(preact.h);
  const { useEffect, useLayoutEffect, useRef, useState } = preactHooks;
  const { Card, Cpus, Topology, classes, part } = koordgate;
  const AROUND = 700; // pixels above and below the window that are drawn too
  const CARD = { width: 190, height: 190 };

  function Head({ node, open, toggle, move }) {
    const keys = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    const press = (event) => {
      if (!(event.key in keys) || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      move(keys[event.key]);
    };
    return html`<h2 class="nodehead">
      <button type="button" data-head=${node.name} aria-expanded=${open} onClick=${toggle} onKeyDown=${press}>
        <span class="arrow" aria-hidden="true">${open ? "▾" : "▸"}</span>
        <span class="nodename">${node.name}</span>
        <span class="quiet">${node.has}</span>
        ${node.bad > 0 && html`<span class="health bad">✕ ${node.bad} not usable</span>`}
        <span class="sums">${node.sums.map((one) => html`<span class="sum">
          <span>${one.word}</span><span class="bar" aria-hidden="true"><i class="held" style=${{ width: `${part(one.held, one.total)}%` }}></i></span>
          <span class="number">${Math.round(part(one.held, one.total))} %</span></span>`)}</span>
      </button>
    </h2>`;
  }

  function Node({ node, open, toggle, move, pods }) {
    return html`<${Head} node=${node} open=${open} toggle=${toggle} move=${move} />
      ${node.blocked && html`<p class="why">${node.blocked}</p>`}
      ${node.undelivered && html`<p class="why">${node.undelivered}</p>`}
      ${open && node.devices.length > 0 && html`<${Topology} node=${node} lit=${pods.lit} />`}
      <div class="cards">${node.devices.map((one) => html`<${Card} key=${one.type + one.id} node=${node} one=${one} pods=${pods} />`)}</div>
      ${open && node.cpus && html`<${Cpus} node=${node} pods=${pods} />`}`;
  }

  function estimate(node, width) {
    const columns = Math.max(1, Math.floor(width / CARD.width));
    return 70 + Math.ceil(node.devices.length / columns) * CARD.height;
  }

  // The first place whose bottom lies below y.
  function firstBelow(tops, y) {
    let low = 0;
    let high = tops.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tops[middle + 1] > y) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  function useWindow(box) {
    const [view, setView] = useState({ top: 0, height: innerHeight, width: 900 });
    useEffect(() => {
      let asked = 0;
      const look = () => {
        asked = 0;
        if (!box.current) return;
        const { top, width } = box.current.getBoundingClientRect();
        setView((was) => (was.top === -top && was.height === innerHeight && was.width === width ? was : { top: -top, height: innerHeight, width }));
      };
      const ask = () => (asked ||= requestAnimationFrame(look));
      look();
      addEventListener("scroll", ask, { passive: true });
      addEventListener("resize", ask);
      return () => {
        removeEventListener("scroll", ask);
        removeEventListener("resize", ask);
        cancelAnimationFrame(asked);
      };
    }, []);
    return view;
  }

  function Nodes({ nodes, pods, opened, setOpened, few }) {
    const box = useRef();
    const view = useWindow(box);
    const heights = useRef(new Map());
    const width = useRef(0);
    const [, measured] = useState(0);
    const [pinned, setPinned] = useState(""); // the node that has the focus stays, wherever it is scrolled to
    const wanted = useRef("");
    if (width.current !== view.width) {
      width.current = view.width;
      heights.current.clear();
    }
    const tops = [0];
    for (const node of nodes) tops.push(tops.at(-1) + (heights.current.get(node.name) ?? estimate(node, view.width)));
    const first = nodes.length ? firstBelow(tops, view.top - AROUND) : 0;
    const drawn = [];
    for (let at = first; at < nodes.length && tops[at] < view.top + view.height + AROUND; at++) drawn.push(at);
    const kept = pinned ? nodes.findIndex((node) => node.name === pinned) : -1;
    if (kept >= 0 && !drawn.includes(kept)) drawn.push(kept);

    const current = useRef();
    current.current = { tops, nodes };
    const sizes = useRef();
    sizes.current ??= new ResizeObserver((entries) => {
      const { tops: known, nodes: all } = current.current;
      const above = -box.current.getBoundingClientRect().top;
      let moved = 0;
      let any = false;
      for (const { target } of entries) {
        const name = target.dataset.node;
        const height = target.offsetHeight;
        if (!target.isConnected || heights.current.get(name) === height) continue;
        const at = all.findIndex((node) => node.name === name);
        if (at >= 0 && known[at + 1] <= above) moved += height - (known[at + 1] - known[at]);
        heights.current.set(name, height);
        any = true;
      }
      if (any) measured((count) => count + 1);
      if (moved) scrollBy(0, moved); // what is in sight stays where it is
    });
    useEffect(() => () => sizes.current.disconnect(), []);
    const watch = (element) => element && sizes.current.observe(element);

    useLayoutEffect(() => {
      const head = wanted.current && box.current.querySelector(`[data-head="${CSS.escape(wanted.current)}"]`);
      if (!head) return;
      wanted.current = "";
      head.focus({ preventScroll: true });
      head.scrollIntoView({ block: "nearest" });
    });
    const moveFrom = (at) => (by) => {
      const to = Math.max(0, Math.min(nodes.length - 1, at + by));
      wanted.current = nodes[to].name;
      setPinned(nodes[to].name);
      measured((count) => count + 1);
    };
    const focused = (event) => setPinned(event.target.closest("[data-node]")?.dataset.node ?? "");

    return html`<div class="nodes" role="list" aria-label="Nodes" ref=${box} style=${{ height: `${tops.at(-1)}px` }} onFocusIn=${focused}>
      ${drawn.sort((a, b) => a - b).map((at) => {
        const node = nodes[at];
        const open = opened.get(node.name) ?? few;
        return html`<div key=${node.name} class=${classes("node", node.blocked && "blocked")} role="listitem" aria-setsize=${nodes.length} aria-posinset=${at + 1}
          data-node=${node.name} ref=${watch} style=${{ top: `${tops[at]}px` }}>
          <${Node} node=${node} open=${open} pods=${pods} move=${moveFrom(at)} toggle=${() => setOpened(node.name, !open)} />
        </div>`;
      })}
    </div>`;
  }

  Object.assign(koordgate, { Nodes });
})();
