// Where the document comes from: this file itself, or the server, of which only changes are read after the first time.
"use strict";

(() => {
  const { readNode } = koordgate;
  const TOKEN = "koordgate.map.token"; // in sessionStorage: it ends with the tab, and no other site can read it
  const SILENT_MS = 20000; // a stream that says nothing for longer is no stream
  const POLL_MS = 10000;
  const WAITS_MS = [1000, 2000, 5000, 10000];
  const TRIES = 3; // of streams before changes are asked for instead
  const POLLS = 30; // before a stream is tried again
  const MOST_RELOADS = 3;

  class Refused extends Error {
    constructor(status, message) {
      super(message);
      this.status = status;
    }
  }

  const pause = (ms) => new Promise((done) => setTimeout(done, ms));

  class Source {
    // changed() is called after each change of the fields below.
    constructor(changed) {
      this.nodes = new Map();
      this.names = [];
      this.types = {};
      this.waiting = { pods: [], total: 0 };
      this.state = "loading"; // file, loading, live, polling, lost, signin
      this.message = "";
      this.total = 0;
      this.at = 0;
      this.changed = changed;
      this.token = sessionStorage.getItem(TOKEN) ?? "";
      this.failures = 0;
      this.reloads = 0;
    }

    async start() {
      const text = document.getElementById("data").textContent;
      if (text.trim()) {
        this.take(JSON.parse(text), true);
        this.tell("file");
        return;
      }
      for (;;) {
        try {
          await this.load();
          await this.follow();
        } catch (error) {
          if (error instanceof Refused && [401, 403].includes(error.status)) {
            this.forget(this.token ? error.message : "");
            await new Promise((resume) => (this.resume = resume));
          } else {
            this.tell("lost", error instanceof Refused ? error.message : "The server cannot be reached.");
            await pause(WAITS_MS[Math.min(this.failures++, WAITS_MS.length - 1)]);
          }
        }
      }
    }

    signIn(token) {
      this.token = token.trim();
      sessionStorage.setItem(TOKEN, this.token);
      this.tell("loading");
      this.resume?.();
    }

    signOut() {
      this.abort?.abort(new Refused(401, "You have signed out."));
    }

    forget(message) {
      this.token = "";
      sessionStorage.removeItem(TOKEN);
      this.nodes.clear();
      this.names = [];
      this.waiting = { pods: [], total: 0 };
      this.tell("signin", message);
    }

    tell(state, message = "") {
      this.state = state;
      this.message = message;
      this.changed();
    }

    async ask(path, options = {}) {
      const headers = this.token ? { Authorization: `Bearer ${this.token}` } : {};
      this.abort = new AbortController();
      const answer = await fetch(path, { headers, cache: "no-store", credentials: "omit", signal: this.abort.signal, ...options });
      if (!answer.ok) throw new Refused(answer.status, (await answer.text()).slice(0, 300));
      return answer;
    }

    async load() {
      const fresh = new Map();
      let after = "";
      let revision;
      let epoch;
      do {
        const page = await (await this.ask(`api/nodes?after=${encodeURIComponent(after)}`)).json();
        if (epoch !== undefined && page.epoch !== epoch) return this.again();
        if (epoch === undefined) {
          ({ epoch, revision } = page);
          this.types = page.types;
          this.waiting = page.waiting;
        }
        for (const raw of page.nodes) fresh.set(raw.name, readNode(raw, this.types));
        this.at = page.at;
        this.total = page.total;
        if (!this.nodes.size || fresh.size < this.nodes.size) this.show(new Map(fresh));
        after = page.next;
      } while (after);
      this.show(fresh);
      this.epoch = epoch;
      this.revision = revision;
      this.failures = 0;
    }

    show(nodes) {
      this.nodes = nodes;
      this.names = [...nodes.keys()].sort();
      this.changed();
    }

    // Several replicas behind one address answer with revisions of their own.
    again() {
      if (++this.reloads > MOST_RELOADS) {
        throw new Error("several replicas answer in turn; open the map of one of them, as with kubectl port-forward");
      }
      return this.load();
    }

    take(document_, whole = false) {
      if (document_.types) this.types = document_.types;
      for (const raw of document_.nodes ?? []) this.nodes.set(raw.name, readNode(raw, this.types));
      for (const name of document_.gone ?? []) this.nodes.delete(name);
      if (document_.waiting) this.waiting = document_.waiting;
      this.at = document_.at;
      this.revision = document_.revision;
      if (whole || this.nodes.size !== this.names.length || (document_.gone ?? []).length) this.names = [...this.nodes.keys()].sort();
      this.total = this.nodes.size;
      this.changed();
    }

    where(path) {
      return `${path}?since=${this.revision}&epoch=${encodeURIComponent(this.epoch)}`;
    }

    // Follow changes until all must be read again.
    async follow() {
      for (;;) {
        for (let tries = 0; tries < TRIES; tries++) {
          try {
            if (await this.stream(() => (tries = 0))) return;
          } catch (error) {
            if (error instanceof Refused && error.status < 500) throw error;
            if (error instanceof Refused && error.status === 503) break; // as many follow as may: ask in turns
          }
          await pause(WAITS_MS[tries]);
        }
        for (let polls = 0; polls < POLLS; polls++) {
          const changed = await (await this.ask(this.where("api/changes"))).json();
          if (changed.reset) return;
          this.take(changed);
          this.tell("polling");
          if (!changed.more) await pause(POLL_MS);
        }
      }
    }

    // Read server-sent events by hand: EventSource cannot send the token. Returns true if all must be read again.
    async stream(heard) {
      const answer = await this.ask(this.where("api/events"));
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let buffered = "";
      try {
        for (;;) {
          const { value, done } = await this.inTime(reader.read());
          if (done) return false;
          buffered += value;
          const events = buffered.split("\n\n");
          buffered = events.pop();
          for (const event of events) {
            if (event.startsWith("event: refused")) throw new Refused(401, event.split("data: ")[1] ?? "");
            const changed = JSON.parse(event.replace(/^data: /, ""));
            if (changed.reset) return true;
            this.take(changed);
            if (this.state !== "live") this.tell("live");
            this.reloads = 0;
            heard();
          }
        }
      } finally {
        reader.cancel().catch(() => {});
      }
    }

    async inTime(reading) {
      let timer;
      const late = new Promise((_, fail) => (timer = setTimeout(() => fail(new Error("silent")), SILENT_MS)));
      try {
        return await Promise.race([reading, late]);
      } finally {
        clearTimeout(timer);
      }
    }
  }

  Object.assign(koordgate, { Source });
})();
