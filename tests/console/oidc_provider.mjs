// A certified OpenID Connect provider on this machine: `node oidc_provider.mjs CALLBACK_URL`; prints its issuer.
// Its development pages accept every name and password. The account "alice" belongs to the group "staff".
import http from 'node:http';
import Provider from 'oidc-provider';

const server = http.createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{
      client_id: 'console', client_secret: 'provider-secret', redirect_uris: [process.argv[2]],
      grant_types: ['authorization_code'], response_types: ['code'],
    }],
    claims: { openid: ['sub'], profile: ['preferred_username', 'groups'] },
    cookies: { keys: ['test'] },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, preferred_username: id, groups: id === 'alice' ? ['staff'] : [] }),
    }),
  });
  server.on('request', provider.callback());
  console.log(issuer);
});
